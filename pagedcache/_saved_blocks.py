"""What goes into a saved file: which blocks, what of them counts, and what they belong to."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.core import SequenceTable
from pagedcache.digests import root_digest
from pagedcache.keys import Namespace
from pagedcache.saved._manifest import NO_RECORD, Group, Owner, SavedPath
from pagedcache.spec import CacheSpec, LayerGroup
from pagedcache.tiers.block_format import BlockFormat

__all__ = ["Draft", "format_of", "groups_of", "proof_of"]

Int32 = NDArray[np.int32]


def format_of(spec: CacheSpec) -> BlockFormat:
    """Return the format of a cache's records: as many layers as the largest group has, whichever group a block is of.

    Raises
    ------
    ValueError
        The spec has no fingerprint.
    NotImplementedError
        Its layer groups differ in shape or dtype.
    """
    shapes = {(group.kv_heads, group.head_dim, group.v_head_dim, group.dtype) for group in spec.groups}
    if len(shapes) > 1:
        raise NotImplementedError(f"the layer groups have {len(shapes)} K/V shapes; blocks of one are saved")
    one = CacheSpec(
        spec.planes, spec.kv_heads, spec.head_dim, v_head_dim=spec.v_head_dim, dtype=spec.dtype,
        block_size=spec.block_size, fingerprint=spec.fingerprint,
    )  # fmt: skip
    return BlockFormat.of(one)


def groups_of(spec: CacheSpec) -> list[Group]:
    """Return what a saved file tells of a cache's layer groups."""
    return [_group(group) for group in spec.groups]


def _group(group: LayerGroup) -> Group:
    return Group(group.layers, group.kind, group.window, group.sink_tokens)


def proof_of(namespace: Namespace, form: BlockFormat) -> bytes | None:
    """Return what shows that somebody has a namespace's secret, without telling it: the root of its digests."""
    if namespace.secret is None:
        return None
    return root_digest(form.block_size, bytes.fromhex(form.fingerprint), namespace.secret)


@dataclass(slots=True)
class Draft:
    """All that a saved file holds, but for the bytes of the blocks; `of` makes it.

    Attributes
    ----------
    blocks : int32 [n]
        Blocks of the pool, by the number of their record.
    groups : int32 [n]
        The layer group that each is of.
    begins, ends : int64 [n]
        Which slots of each count.
    tokens : int32 [n, block_size]
        Token ids; -1 where there are none.
    paths : list of SavedPath
    namespaces : list of Namespace
    """

    blocks: Int32
    groups: Int32
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    tokens: Int32
    paths: list[SavedPath]
    namespaces: list[Namespace]

    @classmethod
    def of(cls, table: SequenceTable, ids: ArrayLike | None) -> "Draft":
        """Return the draft of these sequences, or of the whole prefix cache."""
        collector = _Collector(table)
        if ids is None:
            collector.add_published()
        else:
            collector.add_sequences(np.asarray(ids).tolist())
        return collector.draft()

    def owners(self, form: BlockFormat) -> list[Owner]:
        """Return the namespaces as the file tells them."""
        return [Owner(Namespace.of(each).name, proof_of(each, form)) for each in self.namespaces]  # type: ignore[arg-type]

    def same(self, other: "Draft") -> bool:
        """Whether nothing has changed."""
        arrays = all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("blocks", "begins", "ends", "tokens")
        )
        return arrays and self.namespaces == other.namespaces and list(map(_told, self.paths)) == list(
            map(_told, other.paths)
        )  # fmt: skip


def _told(path: SavedPath) -> tuple[object, ...]:
    return path.blocks.tolist(), path.position, path.pad, path.known, path.priority, path.owner, path.keys


class _Collector:
    """Numbers blocks in the order in which they are met."""

    def __init__(self, table: SequenceTable) -> None:
        self._table, self._size = table, table.block_size
        # By block of the pool: its record, layer group, the slots of it that count, and its tokens.
        rows = table.pool.num_blocks + 1
        self._records = np.full(rows, NO_RECORD, np.int32)
        self._groups = np.zeros(rows, np.int32)
        self._begins, self._ends = np.full(rows, self._size, np.int64), np.zeros(rows, np.int64)
        self._met: list[Int32] = []
        self._count = 0
        self._tokens: dict[int, Int32] = {}
        self._namespaces: dict[Namespace, int] = {}
        self._paths: list[SavedPath] = []

    def add_published(self) -> None:
        """Add what the prefix cache holds, a path for each block that nothing continues."""
        told = self._table.published()
        is_continued = np.zeros(len(told.blocks), np.bool_)
        is_continued[told.parents[told.parents >= 0]] = True
        for leaf in np.flatnonzero(~is_continued).tolist():
            path = told.path(leaf)
            end = len(path) * self._size
            blocks = self._numbered(told.blocks[path], 0, end, told.tokens[path].ravel())
            owner = self._owner(told.border(path))
            self._paths.append(SavedPath(False, blocks, end, owner=owner, keys=told.keys(path)))

    def add_sequences(self, handles: list[int]) -> None:
        """Add sequences."""
        if len(set(handles)) < len(handles):
            raise ValueError("an id is named twice in one call")
        for handle in handles:
            told = self._table.contents(handle)
            if told.position < told.settled:
                raise ValueError(
                    f"sequence {handle} stands at {told.position}, and its keys are about tokens up to {told.settled}: "
                    "compute its prompt so far first"
                )
            entries = -(-told.position // self._size)
            groups = range(self._table.num_sides + 1)
            tables = np.stack([self._table.block_table(handle, group)[:entries] for group in groups], axis=1)
            known = told.tokens is not None
            blocks = self._numbered(tables, told.pad, told.position, told.tokens)
            self._paths.append(
                SavedPath(
                    True, blocks, told.position, told.pad, known, told.priority, self._owner(told.namespace),
                    told.keys if known else [],
                )
            )  # fmt: skip

    def _numbered(self, tables: Int32, pad: int, end: int, tokens: Int32 | None) -> Int32:
        """Return the records of a path's blocks, new ones where they were not met before."""
        entries = np.arange(len(tables))
        for group, column in enumerate(tables.T):
            there = column > 0
            blocks, at = column[there], entries[there] * self._size
            new = blocks[self._records[blocks] == NO_RECORD]
            self._records[new] = np.arange(self._count, self._count + len(new), dtype=np.int32)
            self._count += len(new)
            self._met.append(new)
            self._groups[new] = group
            self._begins[blocks] = np.minimum(self._begins[blocks], np.clip(pad - at, 0, self._size))
            self._ends[blocks] = np.maximum(self._ends[blocks], np.clip(end - at, 0, self._size))
        if tokens is not None:
            for entry, block in enumerate(tables[:, 0].tolist()):
                some = tokens[entry * self._size : (entry + 1) * self._size]
                if len(some) > len(self._tokens.get(block, ())):
                    self._tokens[block] = some
        return np.where(tables > 0, self._records[tables], np.int32(NO_RECORD))

    def _owner(self, namespace: Namespace) -> int:
        return self._namespaces.setdefault(namespace, len(self._namespaces))

    def draft(self) -> Draft:
        """Return what was collected."""
        blocks = np.concatenate([np.empty(0, np.int32), *self._met])
        tokens = np.full((len(blocks), self._size), -1, np.int32)
        for block, some in self._tokens.items():
            tokens[self._records[block], : len(some)] = some
        return Draft(
            blocks, self._groups[blocks], self._begins[blocks], self._ends[blocks], tokens, self._paths,
            list(self._namespaces),
        )  # fmt: skip
