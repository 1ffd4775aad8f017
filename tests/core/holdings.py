"""Rows, steps and pins in plain Python, and which blocks they hold.

Nobody counts references here: who holds what is listed afresh whenever it matters, and a block whose last holder has
gone since then waits for the current fence.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import NamedTuple

from pagedcache.keys import Key, Namespace, block_keys

AWAY = 0  # stands where a row's block was swapped out
Prefix = tuple[bytes, tuple[tuple[bytes, tuple[int, ...]], ...]]  # namespace; per block what begins in it, its tokens


@cache
def framed(keys: tuple[Key, ...], block_size: int) -> dict[int, bytes]:
    """What begins in which block, as the bytes that tell blocks of equal tokens apart."""
    return {key.block: key.frame for key in block_keys(None, keys, block_size, 2**30)}


def agreeing(one: Iterable[int], other: Iterable[int]) -> int:
    """Leading entries that are the same in both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class About(NamedTuple):
    """What the K/V of a sequence depends on besides its tokens."""

    namespace: Namespace
    keys: tuple[Key, ...] = ()

    def settled(self) -> int:
        """A row cut before this is no longer what its keys say."""
        return max((key.start if key.stop is None else key.stop for key in self.keys), default=0)


@dataclass
class Row:
    about: About
    tokens: list[int] = field(default_factory=list)  # committed tokens, pad excluded
    blocks: list[int] = field(default_factory=list)  # in use, then allotted by admit
    pad: int = 0  # left positions that are never visible
    publishes: bool = True  # False: padded, cut within its keys, reset, or a commit without tokens
    away: bool = False  # swapped out
    partial: int = 0  # where a hit ended within a block, for whose copy the last block is; 0: nowhere

    @property
    def position(self) -> int:
        return self.pad + len(self.tokens)


class Copy(NamedTuple):
    sid: int
    position: int  # where the row goes on
    logical: int
    source: int  # held until the step closes
    is_own: bool  # into a block that admit had taken for it


@dataclass
class OpenStep:
    serial: int
    new: dict[int, list[int]]  # id -> its new tokens, in the order of the step
    appended: dict[int, int] = field(default_factory=dict)  # id -> blocks that the step took for it
    copies: list[Copy] = field(default_factory=list)


class Holdings:
    """Everything that can hold a block of the pool."""

    def __init__(self, num_blocks: int, block_size: int, max_sequences: int) -> None:
        self.num_blocks, self.block_size, self.max_sequences = num_blocks, block_size, max_sequences
        self.rows: dict[int, Row] = {}
        self.doomed: dict[int, Row] = {}  # released while open steps name them
        self.steps: list[OpenStep] = []  # oldest first
        self.deferred: list[tuple[int, int]] = []  # block given up at commit; the newest step that was open then
        self.pins: dict[str, tuple[bytes, list[int]]] = {}  # namespace, blocks
        self.borrowed: list[int] = []  # blocks that a caller has from the pool itself
        self.holds: dict[int, list[int]] = {}  # published blocks that stay as they are
        self.fence = self.retired = 0
        self.waiting: dict[int, int] = {}  # block -> the fence that must retire before anyone else may have it
        self.held: set[int] = set()  # blocks that had a holder when somebody last looked

    def span(self, length: int) -> int:
        return -(-length // self.block_size)

    def sources(self) -> Counter[int]:
        """What open steps copied from."""
        return Counter(copy.source for step in self.steps for copy in step.copies)

    def holders(self) -> Counter[int]:
        """Block -> how often rows, open steps, pins and callers name it."""
        count = Counter(b for row in (*self.rows.values(), *self.doomed.values()) for b in row.blocks if b != AWAY)
        count.update(self.sources())
        count.update(block for block, _ in self.deferred)
        count.update(block for _, blocks in self.pins.values() for block in blocks)
        count.update(self.borrowed)
        count.update(block for blocks in self.holds.values() for block in blocks)
        return count

    def references(self) -> Counter[int]:
        """The same, with the references of the fences."""
        self.used()
        return self.holders() + Counter(list(self.waiting))

    def used(self) -> set[int]:
        """Blocks that nobody else may have now."""
        held = set(self.holders())
        if self.fence > self.retired:
            self.waiting.update(dict.fromkeys(self.held - held, self.fence))
        self.held = held
        return held | self.waiting.keys()

    def finish(self, sid: int) -> None:
        """A released row that no step names any more goes, though a later row of its step may take its blocks back."""
        if sid in self.doomed and not self.is_open(sid):
            del self.doomed[sid]
            self.used()

    def free(self) -> int:
        return self.num_blocks - len(self.used())

    def free_rows(self) -> int:
        return self.max_sequences - len(self.rows) - len(self.doomed)

    def is_open(self, sid: int) -> bool:
        return any(sid in step.new for step in self.steps)

    def end(self, sid: int) -> int:
        """Position of the row once every open step is committed."""
        return self.rows[sid].position + sum(len(step.new.get(sid, ())) for step in self.steps)

    def cover(self, fence: int) -> None:
        self.used()
        self.fence = max(self.fence, fence)

    def retire(self, fence: int) -> int:
        before = self.free()
        self.retired = max(self.retired, fence)
        self.waiting = {block: until for block, until in self.waiting.items() if until > self.retired}
        return self.free() - before
