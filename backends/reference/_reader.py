"""K and V of one layer as float32, gathered from its blocks."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.host.formats import widened
from pagedcache.backends.host.storage import HostStorage
from pagedcache.backends.reference._scratch import Scratch

__all__ = ["LayerReader"]

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


class LayerReader:
    """The K and V of one layer, read by rows of one token (NHD) or one token and head (HND)."""

    def __init__(self, storage: HostStorage, layer: int, scratch: Scratch) -> None:
        self.scratch = scratch
        spec = storage.spec
        self.kv_heads, self.head_dim, self.v_head_dim = spec.kv_heads, spec.head_dim, spec.v_head_dim
        self._block_size, self._by_head = spec.block_size, spec.layout == "HND"
        row_axes = 3 if self._by_head else 2
        planes = (*storage.raw(layer), *storage.raw_scales(layer))
        rows: list[npt.NDArray[Any]] = [plane.reshape(-1, *plane.shape[row_axes:]) for plane in planes]
        self._key, self._value, self._scales = rows[0], rows[1], rows[2:]
        self._offsets = np.arange(self._block_size)
        self._heads = np.arange(self.kv_heads)[:, None] * self._block_size

    def rows(self, table: npt.NDArray[np.int64], spans: list[tuple[int, int]]) -> Int64:
        """Return where the tokens of some spans of a sequence are: [tokens], or [heads, tokens] by head."""
        rows = np.concatenate([np.arange(0), *(self._rows_of_span(table, first, last) for first, last in spans)])
        return rows + self._heads if self._by_head else rows

    def _rows_of_span(self, table: npt.NDArray[np.int64], start: int, stop: int) -> Int64:
        first = start // self._block_size
        blocks = table[first : (stop - 1) // self._block_size + 1].astype(np.int64)
        blocks *= self._block_size * (self.kv_heads if self._by_head else 1)
        rows = (blocks[:, None] + self._offsets).reshape(-1)
        return rows[start - first * self._block_size : stop - first * self._block_size]

    def read(self, rows: Int64, size: int) -> tuple[Float32, Float32]:
        """Return K [heads, size, head_dim] and V [heads, size, v_head_dim], valid until the next call.

        Beyond the given rows the last one is repeated, for the caller to mask. Slots that hold no
        token are not read.
        """
        count = rows.shape[-1]
        padded = self.scratch.array("rows", (*rows.shape[:-1], size), np.int64)
        padded[..., :count] = rows
        padded[..., count:] = rows[..., -1:]
        key, value = self._gathered("K", self._key, padded), self._gathered("V", self._value, padded)
        for name, tokens, scales in zip(("K scales", "V scales"), (key, value), self._scales, strict=False):
            tokens *= self._taken(name, scales, padded)[..., None]
        return (key, value) if self._by_head else (key.transpose(1, 0, 2), value.transpose(1, 0, 2))

    def _gathered(self, name: str, plane: npt.NDArray[Any], rows: Int64) -> Float32:
        stored = self._taken(name, plane, rows)
        if stored.dtype == np.float32:
            return stored
        return widened(stored, out=self.scratch.array(name, stored.shape, np.float32))

    def _taken(self, name: str, plane: npt.NDArray[Any], rows: Int64) -> npt.NDArray[Any]:
        room = self.scratch.array(name, (*rows.shape, *plane.shape[1:]), plane.dtype.type)
        # mode="clip" writes straight to `out`; the arguments were checked, so every row is within the plane.
        return plane.take(rows, axis=0, out=room, mode="clip")
