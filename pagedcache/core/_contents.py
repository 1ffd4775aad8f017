"""What ArchiveTable tells of sequences and of the prefix cache: plain data."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagedcache.keys import NAMESPACE, Key, Namespace, parts

__all__ = ["Published", "SequenceContents", "keys_of", "namespace_of"]


class SequenceContents(NamedTuple):
    """What makes a sequence, besides its blocks.

    Attributes
    ----------
    tokens : int32 [position], or None
        None where the sequence publishes nothing: it is padded, was committed without tokens, or was cut or reset
        so that its keys no longer describe it.
    position, pad : int
        Next row coordinate; leading positions that are never visible.
    priority : int
        Of the blocks that it publishes.
    namespace : Namespace
        The border that it is within, secret included.
    keys : list of Key
        What its content depends on besides tokens.
    settled : int
        Where what its keys are about ends; a sequence that stands before cannot be described by them.
    """

    tokens: NDArray[np.int32] | None
    position: int
    pad: int
    priority: int
    namespace: Namespace
    keys: list[Key]
    settled: int


class Published(NamedTuple):
    """The prefix cache, block by block, what a block continues before it.

    Attributes
    ----------
    blocks : int32 [n, groups]
        Of each layer group; 0 where a side group has none.
    parents : int32 [n]
        Which entry a block continues; -1 for first blocks.
    tokens : int32 [n, block_size]
        Token ids.
    numbers : int32 [n]
        What begins in the block, besides tokens, as an index into `facts`; 0 for nothing.
    facts : list
        (framed keys, name of the namespace, its secret) of each number in use.
    """

    blocks: NDArray[np.int32]
    parents: NDArray[np.int32]
    tokens: NDArray[np.int32]
    numbers: NDArray[np.int32]
    facts: list[Any]

    def path(self, entry: int) -> list[int]:
        """Return the entries from a first block to this one."""
        found = []
        while entry >= 0:
            found.append(entry)
            entry = int(self.parents[entry])
        return found[::-1]

    def border(self, path: list[int]) -> Namespace:
        """Return the namespace of a path."""
        return namespace_of(self.facts[self.numbers[path[0]]])

    def keys(self, path: list[int]) -> list[Key]:
        """Return the keys of the prompts that a path is the beginning of, as far as they begin there."""
        numbers = enumerate(self.numbers[path].tolist())
        starts = [(block, self.facts[number][0]) for block, number in numbers if number]
        return keys_of(starts, self.tokens.shape[1])


def namespace_of(fact: Any) -> Namespace:
    """Return the namespace of an entry of the table of keys; the default one's is None."""
    return Namespace() if fact is None else Namespace(fact[1], fact[2])


def keys_of(starts: Iterable[tuple[int, bytes]], block_size: int) -> list[Key]:
    """Return the keys whose frames stand in these blocks: what `pagedcache.keys.block_keys` has made of them.

    Examples
    --------
    >>> from pagedcache.keys import block_keys, content
    >>> framed = [(key.block, key.frame) for key in block_keys("ours", [content("cat", 5, 10)], 4, 12)]
    >>> keys_of(framed, 4)
    [Key(kind='image', start=5, stop=10)]
    """
    found = []
    for block, framed in starts:
        for part in parts(framed):
            start = block * block_size + part.offset
            if part.kind != NAMESPACE:
                found.append(Key(part.kind, part.value, start, start + part.extent if part.extent else None))
    return found
