"""The simple API's memory: pages, who holds them, and tables that map a sequence's pages to them.

Page id p is block id p + 1 of a pool of its own. What goes into the pages, and attention over them,
is in `pagedcache.simple`.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache._sizes import integer
from pagedcache.backends import Backend, Storage, get
from pagedcache.core import BlockPool
from pagedcache.errors import InvalidBlock, OutOfBlocks
from pagedcache.spec import CacheSpec

__all__ = ["BlockManager", "Page", "PageTable"]


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

    Eight bits a number, times a scale for each token and head:

    >>> manager = BlockManager(total_pages=4, page_size=16, num_heads=1, head_dim=3, dtype="int8")
    >>> from pagedcache import SequenceManager
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
        backend: str | Backend = "cpu",
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
