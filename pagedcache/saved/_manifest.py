"""The manifest of a saved file: what its blocks belong to, as JSON that is believed only after it was checked."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache.errors import CorruptFile
from pagedcache.keys import MAX_POSITION, Key, Namespace, block_keys

__all__ = ["Group", "Manifest", "Owner", "SavedPath"]

MOST_BYTES = 2**26  # of a manifest
MOST_GROUPS = 64
NO_RECORD = -1  # stands in a table where a window has let a block go


@dataclass(frozen=True, slots=True)
class Group:
    """What a layer group keeps; as in `LayerGroup`."""

    layers: int
    kind: str
    window: int | None
    sink_tokens: int

    def kept(self, entries: int, block_size: int, position: int, pad: int) -> NDArray[np.bool_]:
        """Return which of the blocks a sequence at `position` must have."""
        if self.window is None:
            return np.ones(entries, np.bool_)
        lowest = max(pad, position - self.window + 1)
        if self.kind == "chunked_local":
            lowest = position - (position - pad) % self.window
        sinks = -(-(pad + self.sink_tokens) // block_size) if self.sink_tokens else 0
        at = np.arange(entries)
        kept: NDArray[np.bool_] = (at >= lowest // block_size) | (at < sinks)
        return kept


@dataclass(frozen=True, slots=True)
class Owner:
    """A namespace: its name, and what only the secret that it had can make; None without one."""

    name: bytes
    proof: bytes | None


@dataclass(slots=True)
class SavedPath:
    """A sequence, or the blocks of a prompt that the prefix cache had.

    Attributes
    ----------
    is_sequence : bool
    blocks : int32 [n, groups]
        Numbers of records; -1 where there is none.
    position, pad, known, priority
        As in `SequenceContents`; known says whether the tokens are.
    owner : int
        Index of the namespace.
    keys : list of Key
    """

    is_sequence: bool
    blocks: NDArray[np.int32]
    position: int
    pad: int = 0
    known: bool = True
    priority: int = 0
    owner: int = 0
    keys: list[Key] = field(default_factory=list)

    @property
    def reach(self) -> int:
        """Tokens that a prompt needs so that all keys end within it."""
        return max([self.position, *(key.start if key.stop is None else key.stop for key in self.keys)])


@dataclass(slots=True)
class Manifest:
    """Everything in a saved file that is no record."""

    groups: list[Group]
    max_step_tokens: int | None
    owners: list[Owner]
    paths: list[SavedPath]

    def text(self) -> bytes:
        """Return it as JSON, without the tables of blocks."""
        paths = [
            {
                "sequence": path.is_sequence, "entries": len(path.blocks), "position": path.position, "pad": path.pad,
                "known": path.known, "priority": path.priority, "namespace": path.owner,
                "keys": [[key.kind, _hex(key.value), key.start, key.stop] for key in path.keys],
            }
            for path in self.paths
        ]  # fmt: skip
        told = {
            "groups": [[group.layers, group.kind, group.window, group.sink_tokens] for group in self.groups],
            "max_step_tokens": self.max_step_tokens,
            "namespaces": [[_hex(owner.name), _hex(owner.proof)] for owner in self.owners],
            "paths": paths,
        }
        return json.dumps(told, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def read(cls, text: bytes, tables: NDArray[np.int32], block_size: int, where: str) -> "Manifest":
        """Return what `text` wrote, every value checked; tables: int32 [entries], of all paths one after the other.

        Raises
        ------
        CorruptFile
            It makes no sense.
        """
        try:
            return cls._of(json.loads(text), tables, block_size)
        except (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError) as error:
            raise CorruptFile(f"{where} has a manifest that makes no sense: {error}") from None

    @classmethod
    def _of(cls, told: Any, tables: NDArray[np.int32], block_size: int) -> "Manifest":
        _require(isinstance(told, dict), "it is no object")
        names = {"groups", "max_step_tokens", "namespaces", "paths"}
        _require(set(told) == names, f"it has {sorted(told)} instead of {sorted(names)}")
        groups = [_group(*entry) for entry in _list(told["groups"])]
        _require(1 <= len(groups) <= MOST_GROUPS and groups[0].window is None, f"{len(groups)} layer groups")
        step = told["max_step_tokens"]
        _require(step is None or _is_size(step, 1), f"max_step_tokens {step!r}")
        _require(step is not None or all(group.window is None for group in groups), "windows without max_step_tokens")
        owners = [Owner(_bytes(name), None if proof is None else _bytes(proof)) for name, proof in told["namespaces"]]
        for owner in owners:
            Namespace(owner.name)
        _require(len(tables) % len(groups) == 0, f"{len(tables)} table entries for {len(groups)} groups")
        paths = list(_paths(told["paths"], tables.reshape(-1, len(groups)), groups, owners, block_size))
        return cls(groups, step, owners, paths)


def _paths(
    told: Any, tables: NDArray[np.int32], groups: list[Group], owners: list[Owner], block_size: int
) -> Iterator[SavedPath]:
    first = 0
    for entry in _list(told):
        count = entry["entries"]
        _require(_is_size(count, 0) and first + count <= len(tables), f"a path of {count!r} entries")
        path = SavedPath(
            entry["sequence"], tables[first : first + count], entry["position"], entry["pad"], entry["known"],
            entry["priority"], entry["namespace"], [_key(*key) for key in _list(entry["keys"])],
        )  # fmt: skip
        first += count
        _check_path(path, groups, len(owners), block_size)
        block_keys(owners[path.owner].name, path.keys, block_size, path.reach)
        yield path
    _require(first == len(tables), f"paths of {first} entries, and tables of {len(tables)}")


def _check_path(path: SavedPath, groups: list[Group], owners: int, block_size: int) -> None:
    _require(isinstance(path.is_sequence, bool) and isinstance(path.known, bool), "a path of no kind")
    for name, value in (("position", path.position), ("pad", path.pad), ("priority", path.priority)):
        _require(_is_size(value, 0), f"a path with {name} {value!r}")
    _require(_is_size(path.owner, 0) and path.owner < owners, f"a path in namespace {path.owner!r}")
    _require(path.pad <= path.position and not (path.known and path.pad), f"a path with pad {path.pad}")
    entries = len(path.blocks)
    _require(-(-path.position // block_size) == entries, f"a path of {entries} blocks at position {path.position}")
    there = path.blocks[path.blocks >= 0]
    _require(len(np.unique(there)) == len(there), "a path that has a block twice")
    if path.is_sequence:
        _require(path.reach == path.position, "a sequence whose keys go beyond it")
        _require(path.known or not path.keys, "a sequence with keys and no tokens")
    else:
        _require(path.known and path.position == entries * block_size, "a prompt whose blocks are not full")
    for number, (group, column) in enumerate(zip(groups, path.blocks.T, strict=True)):
        if path.is_sequence:
            column = column[group.kept(entries, block_size, path.position, path.pad)]
        if path.is_sequence or number == 0:
            _require(bool((column >= 0).all()), f"a path without a block that its {group.kind!r} group shows")


def _group(layers: Any, kind: Any, window: Any, sinks: Any) -> Group:
    _require(_is_size(layers, 1) and _is_size(sinks, 0), f"a layer group of {layers!r} layers, {sinks!r} sinks")
    _require(kind in ("full", "sliding_window", "chunked_local"), f"a layer group of kind {kind!r}")
    _require(window is None if kind == "full" else _is_size(window, 1), f"a {kind!r} group with window {window!r}")
    return Group(layers, kind, window, sinks)


def _key(kind: Any, value: Any, start: Any, stop: Any) -> Key:
    _require(isinstance(kind, str) and _is_size(start, 0) and (stop is None or _is_size(stop, 1)), f"key {kind!r}")
    return Key(kind, _bytes(value), start, stop)


def _list(value: Any) -> list[Any]:
    _require(isinstance(value, list), f"{type(value).__name__} instead of a list")
    found: list[Any] = value
    return found


def _is_size(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= MAX_POSITION


def _hex(value: bytes | str | None) -> str | None:
    return None if value is None else (value.encode() if isinstance(value, str) else value).hex()


def _bytes(value: Any) -> bytes:
    _require(isinstance(value, str), f"{type(value).__name__} instead of hexadecimal digits")
    return bytes.fromhex(value)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
