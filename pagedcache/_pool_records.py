"""The bytes of a pool's blocks, as tiers take and give them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.backends import Backend, Storage
from pagedcache.tiers import BlockFormat, Places

__all__ = ["PoolRecords"]

Bytes = NDArray[np.uint8]


class PoolRecords:
    """Where tiers read and write blocks: in the pool itself, or in arrays beside it.

    In the pool itself where it is in the host's memory, keeps tokens before heads, as records do, and a backend's work
    is done when a call returns.
    """

    def __init__(self, backend: Backend, storage: Storage, form: BlockFormat) -> None:
        self._backend, self._storage, self._form = backend, storage, form
        plain = isinstance(storage.view(0)[0], np.ndarray) and storage.spec.layout == "NHD"
        self.are_direct = plain and backend.capabilities.synchronous

    def places(self, blocks: ArrayLike) -> Places:
        """Where blocks are in the pool; only if `are_direct`. The pool cannot be closed while this is in use."""
        layers = []
        for layer in range(self._form.layers):
            kinds = (*self._storage.view(layer), *(self._storage.scales(layer) or ()))
            layers.append(tuple(kind.view(np.uint8).reshape(len(kind), -1) for kind in kinds))
        return Places(layers, np.asarray(blocks, np.int64))

    def empty(self, blocks: int) -> Bytes:
        """Return room for records beside the pool, uint8 [blocks, layers, record]."""
        return np.empty((blocks, self._form.layers, self._form.record_nbytes), np.uint8)

    def look(self, blocks: ArrayLike) -> Places:
        """Where blocks can be read, at once and under the cache's lock: in the pool, or in a copy."""
        return self.places(blocks) if self.are_direct else self.read(blocks)

    def read(self, blocks: ArrayLike) -> Places:
        """Copy blocks out of the pool, and wait for that; under the cache's lock."""
        records: Bytes = self._backend.read_blocks(self._storage, blocks)
        self._backend.synchronize()
        return Places.of_records(records)

    def write(self, blocks: ArrayLike, records: Bytes, layers: Sequence[int] | None = None) -> None:
        """Copy records into blocks of the pool; under the cache's lock."""
        self._backend.write_blocks(self._storage, blocks, records, layers)
