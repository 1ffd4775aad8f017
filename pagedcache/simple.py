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

from pagedcache._sizes import integer
from pagedcache._tensors import as_array, like
from pagedcache.backends import Backend, Storage, get
from pagedcache.core import BlockPool, Step
from pagedcache.errors import InvalidBlock, OutOfBlocks
from pagedcache.spec import CacheSpec

__all__ = ["BlockManager", "Page", "PageTable", "PagedAttention", "SequenceManager"]


class Page:
    """One page of a `BlockManager`, looked at where it lies."""

    __slots__ = ("_pool", "_storage", "page_id")

    def __init__(self, pool: BlockPool, storage: Storage, page_id: int) -> None:
        self._pool, self._storage, self.page_id = pool, storage, page_id

    @property
    def ref_count(self) -> int:
        """How many sequences, tables and callers hold the page."""
        return self._pool.refcount(self.page_id + 1)

    @property
    def keys(self) -> NDArray[Any]:
        """[page_size, num_heads, head_dim], no copy; read-only if the page is shared when asked for."""
        return self._shown(self._storage.view(0)[0])

    @property
    def values(self) -> NDArray[Any]:
        """As `keys`."""
        return self._shown(self._storage.view(0)[1])

    @property
    def scales(self) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Of keys and of values in 8 bits: float32 [page_size, num_heads], which they are multiplied by; else None."""
        pair = self._storage.scales(0)
        return None if pair is None else (self._shown(pair[0]), self._shown(pair[1]))

    def _shown(self, arrays: NDArray[Any]) -> NDArray[Any]:
        array: NDArray[Any] = arrays[self.page_id + 1]
        if self.ref_count > 1:
            array = array.view()
            array.flags.writeable = False
        return array


class BlockManager:
    """A pool of `total_pages` pages of K/V memory.

    Parameters
    ----------
    total_pages, page_size, num_heads, head_dim : int
        Pages, tokens per page, K/V heads, size of a head.
    backend : str or Backend
    dtype : {"float32", "float16", "bfloat16", "int8", "float8_e4m3"}
        What K and V are stored as. The 8-bit ones have a float32 scale per token and head, in `Page.scales`.

    Examples
    --------
    >>> manager = BlockManager(total_pages=4, page_size=16, num_heads=2, head_dim=8)
    >>> page = manager.allocate_page()
    >>> manager.pages[page].ref_count, len(manager.free_pages)
    (1, 3)
    >>> manager.free_page(page)

    Eight bits a number: the largest of a token and head is exact, the others are rounded.

    >>> manager = BlockManager(total_pages=4, page_size=16, num_heads=1, head_dim=3, dtype="int8")
    >>> sequences = SequenceManager(manager)
    >>> table = sequences.create_sequence(1)
    >>> sequences.append_kv(1, 0, [[254.0, 1.2, -90.0]], [[0.0, 0.0, 0.0]])
    >>> page = manager.pages[table.get_physical_page(0)]
    >>> page.keys[0].tolist(), page.scales[0][0].tolist()
    ([[127, 1, -45]], [2.0])
    """

    def __init__(
        self,
        total_pages: int,
        page_size: int,
        num_heads: int,
        head_dim: int,
        backend: str | Backend = "numpy",
        dtype: str = "float32",
    ) -> None:
        self.spec = CacheSpec(layers=1, kv_heads=num_heads, head_dim=head_dim, block_size=page_size, dtype=dtype)
        self.backend: Backend = get(backend)
        self.pool = BlockPool(total_pages)
        self.storage: Storage = self.backend.allocate(self.spec, total_pages)
        self.page_size = page_size
        self.pages: Sequence[Page] = tuple(Page(self.pool, self.storage, i) for i in range(total_pages))
        self._lent: set[int] = set()  # pages whose reference from allocate_page is out

    @property
    def free_pages(self) -> list[int]:
        """Ids of the pages that nobody holds; a new list each time."""
        return [int(page_id) for page_id in np.flatnonzero(self.pool.refcounts()[1:] == 0)]

    @property
    def allocated_pages(self) -> set[int]:
        """Ids of the pages that somebody holds; a new set each time."""
        return {int(page_id) for page_id in np.flatnonzero(self.pool.refcounts()[1:])}

    def allocate_page(self) -> int:
        """Take a page; OutOfBlocks (a MemoryError) if none is free."""
        page_id = self._take()
        self._lent.add(page_id)
        return page_id

    def free_page(self, page_id: int) -> None:
        """Give back what `allocate_page` gave, once, else InvalidBlock; tables that hold the page keep it."""
        if page_id not in self._lent:
            raise InvalidBlock(
                f"page {page_id} is not one that allocate_page gave out, or was freed before; "
                "pages of a sequence are freed with free_sequence"
            )
        self._drop(page_id)
        self._lent.remove(page_id)

    def _take(self, after: int = -1) -> int:
        try:
            return int(self.pool.allocate(1, after=after + 1)[0]) - 1
        except OutOfBlocks:
            raise OutOfBlocks(f"No free pages available: all {self.pool.num_blocks} are in use") from None

    def _hold(self, *page_ids: int) -> None:
        for page_id in page_ids:
            if not (0 <= page_id < self.pool.num_blocks and self.pool.refcount(page_id + 1)):
                raise InvalidBlock(f"page {page_id} is none of 0 to {self.pool.num_blocks - 1}, or nobody holds it")
        self.pool.incref([page_id + 1 for page_id in page_ids])

    def _drop(self, *page_ids: int) -> None:
        self.pool.decref([page_id + 1 for page_id in page_ids])


class PageTable:
    """Maps logical pages to physical ones.

    Parameters
    ----------
    block_manager : BlockManager, optional
        With one, `map_page` holds a reference to what it maps; without, the table is a plain mapping.
    """

    def __init__(self, block_manager: BlockManager | None = None) -> None:
        self._manager = block_manager
        self._pages: dict[int, int] = {}
        self.num_tokens = 0  # positions that a SequenceManager has filled

    @property
    def logical_to_physical(self) -> Mapping[int, int]:
        """Logical page -> page id, read-only."""
        return MappingProxyType(self._pages)

    @logical_to_physical.setter
    def logical_to_physical(self, value: Any) -> None:
        raise AttributeError(
            "logical_to_physical is read-only, since copying it would share pages without holding them; "
            "use SequenceManager.clone_sequence, or map_page for one page"
        )

    def map_page(self, logical_id: int, physical_id: int) -> None:
        """Map one logical page; what it mapped before is let go."""
        logical_id = integer("logical_id", logical_id, minimum=0)
        if self._manager is not None:
            self._manager._hold(physical_id)
        before = self._pages.get(logical_id)
        self._pages[logical_id] = physical_id
        if before is not None and self._manager is not None:
            self._manager._drop(before)

    def get_physical_page(self, logical_id: int) -> int:
        """Page id of a logical page, or -1."""
        return self._pages.get(logical_id, -1)

    def _clear(self) -> None:
        if self._manager is not None:
            self._manager._drop(*self._pages.values())
        self._pages.clear()
        self.num_tokens = 0

    def __del__(self) -> None:
        if getattr(self, "_pages", None):
            self._clear()

    def __reduce__(self) -> Any:
        raise TypeError("a PageTable cannot be copied or pickled; use SequenceManager.clone_sequence")


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
