"""The five classes of a well-known tutorial on paged attention, over the core and a backend.

For learning, and for code written against the tutorial: it runs with its imports changed. Pages are
blocks, page tables are block tables; page id p is block id p + 1. One layer, one token at a time, for
one thread: a `KVCache` does the same for whole steps.

Tensors of torch are taken, and given back for them, without torch ever being imported here.
"""

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache._pages import BlockManager, Page, PageTable
from pagedcache._sizes import integer
from pagedcache._tensors import as_array, like
from pagedcache.core import Step

__all__ = ["BlockManager", "Page", "PageTable", "PagedAttention", "SequenceManager"]


class SequenceManager:
    """Sequences over the pages of one `BlockManager`."""

    def __init__(self, block_manager: BlockManager) -> None:
        self.block_manager = block_manager
        self._tables: dict[Hashable, PageTable] = {}

    @property
    def sequences(self) -> Mapping[Hashable, PageTable]:
        """Sequence id -> page table, read-only."""
        return MappingProxyType(self._tables)

    def create_sequence(self, seq_id: Hashable) -> PageTable:
        """A new, empty sequence; ValueError if the id is taken."""
        return self._register(seq_id, PageTable(self.block_manager))

    def append_kv(self, seq_id: Hashable, token_pos: int, key: Any, value: Any) -> None:
        """Store K/V of one token.

        Parameters
        ----------
        token_pos : int
            The sequence's next position appends; an earlier one is overwritten; beyond is a ValueError.
        key, value : [num_heads, head_dim]

        A shared page is copied before it is written. OutOfBlocks where no page is free; nothing changes.
        """
        table = self._table(seq_id)
        manager = self.block_manager
        token_pos = integer("token_pos", token_pos, minimum=0)
        if token_pos > table.num_tokens:
            raise ValueError(f"token_pos is {token_pos}; sequence {seq_id!r} takes 0 to {table.num_tokens} (the next)")
        shape = (manager.spec.kv_heads, manager.spec.head_dim)
        stored = manager.spec.dtype
        k, v = (as_array(given, name, stored) for given, name in ((key, "key"), (value, "value")))
        if k.shape != shape or v.shape != shape:
            raise ValueError(f"key and value must be [num_heads, head_dim] = {shape}, not {k.shape} and {v.shape}")
        logical, offset = divmod(token_pos, manager.page_size)
        page_id = table.get_physical_page(logical)
        owned = page_id >= 0 and manager.pool.refcount(page_id + 1) == 1
        target = page_id if owned else manager._take(after=table.get_physical_page(logical - 1))
        try:
            if page_id >= 0 and not owned:
                manager.backend.copy_blocks(manager.storage, np.array([[page_id + 1, target + 1]], np.int32))
            slot = np.array([(target + 1) * manager.page_size + offset], np.int64)
            manager.backend.write(manager.storage, 0, k[None], v[None], slot)
        except BaseException:
            if not owned:
                manager._drop(target)
            raise
        if not owned:
            table._pages[logical] = target
            if page_id >= 0:
                manager._drop(page_id)
        table.num_tokens = max(table.num_tokens, token_pos + 1)

    def clone_sequence(self, src_id: Hashable, new_id: Hashable) -> PageTable:
        """A new sequence that shares every page of another; ValueError if the id is taken."""
        source = self._table(src_id)
        clone = self._register(new_id, PageTable(self.block_manager))
        self.block_manager._hold(*source._pages.values())
        clone._pages = dict(source._pages)
        clone.num_tokens = source.num_tokens
        return clone

    def free_sequence(self, seq_id: Hashable) -> None:
        """Let a sequence go; pages that nobody else holds become free."""
        self._table(seq_id)._clear()
        del self._tables[seq_id]

    def _register(self, seq_id: Hashable, table: PageTable) -> PageTable:
        if seq_id in self._tables:
            raise ValueError(f"sequence {seq_id!r} exists already; free_sequence it first, or take another id")
        self._tables[seq_id] = table
        return table

    def _table(self, seq_id: Hashable) -> PageTable:
        if seq_id not in self._tables:
            raise KeyError(f"there is no sequence {seq_id!r}; create_sequence makes one")
        return self._tables[seq_id]


class PagedAttention:
    """Attention over page tables."""

    def __init__(self, block_manager: BlockManager) -> None:
        self.block_manager = block_manager

    def compute(self, query: Any, page_table: PageTable, seq_len: int) -> Any:
        """Each row of `query` attends, on its own, over the first `seq_len` tokens of one table.

        Parameters
        ----------
        query : [batch, q_heads, head_dim]
            ``q_heads`` is num_heads or a multiple of it (grouped queries).
        seq_len : int
            ValueError where a page within it is not mapped, or the sequence has fewer tokens.

        Returns
        -------
        [batch, q_heads, head_dim]
            In query's dtype, computed in float32; zeros where seq_len is 0.
        """
        array = as_array(query, "query")
        if array.ndim != 3:
            raise ValueError(f"query has shape {array.shape}; it must be [batch, q_heads, head_dim]")
        return like(query, self._attend(array, [page_table] * len(array), [seq_len] * len(array)))

    def batch_compute(self, queries: Sequence[Any], page_tables: Sequence[PageTable], seq_lens: Sequence[int]) -> Any:
        """One query [q_heads, head_dim] for each table and length, n >= 0; returns [n, q_heads, head_dim]."""
        if not len(queries) == len(page_tables) == len(seq_lens):
            raise ValueError(f"{len(queries)} queries, {len(page_tables)} page_tables, {len(seq_lens)} seq_lens")
        if len(queries):
            stacked, first = np.stack([as_array(query, "query") for query in queries]), queries[0]
        else:
            stacked, first = as_array(queries, "queries"), queries
            if stacked.ndim != 3:  # a list, which does not say
                spec = self.block_manager.spec
                stacked = first = np.empty((0, spec.kv_heads, spec.head_dim), np.float32)
        return like(first, self._attend(stacked, page_tables, seq_lens))

    def _attend(self, query: NDArray[Any], tables: Sequence[PageTable], lengths: Sequence[int]) -> NDArray[Any]:
        manager = self.block_manager
        rows = [self._blocks(table, length) for table, length in zip(tables, lengths, strict=True)]
        blocks = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int32)
        for row, ids in zip(blocks, rows, strict=True):
            row[: len(ids)] = ids
        step = Step.from_arrays(blocks, lengths, np.arange(len(rows) + 1), block_size=manager.page_size)
        out: NDArray[Any] = manager.backend.attend(manager.storage, 0, query, step)
        return out

    def _blocks(self, table: PageTable, length: int) -> list[int]:
        """Block ids of the pages that hold the first `length` tokens."""
        if table._manager not in (None, self.block_manager):
            raise ValueError("the page table belongs to another BlockManager")
        blocks = []
        for logical in range(-(-integer("seq_len", length, minimum=0) // self.block_manager.page_size)):
            page_id = table.get_physical_page(logical)
            if page_id < 0:
                raise ValueError(f"logical page {logical} is not mapped, but seq_len {length} reaches into it")
            blocks.append(page_id + 1)
        if 0 < table.num_tokens < length:
            raise ValueError(f"seq_len is {length}; the sequence has {table.num_tokens} tokens")
        return blocks
