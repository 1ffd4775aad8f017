"""Attention of one sequence over its blocks, in float32.

The result for a sequence must not depend on the sequences beside it or on the number of BLAS
threads, bit for bit. Hence every matrix product has one of a few fixed shapes, filled up where
there is less to compute, and is small enough that OpenBLAS does it on the calling thread. The
query heads that read one KV head, ``group`` many, are packed into rows, query after query; rows
are cut into row tiles and keys into key tiles::

    row      0    1   ...  group-1  |  group  ...        per KV head, row tile and key tile:
    query    0    0   ...     0     |    1    ...          [row_tile, d] @ [d, key_tile]   scores
    head     0    1   ...  group-1  |    0    ...          [row_tile, key_tile] @ [key_tile, v_d]

One call of ``matmul`` does many such products. A long prompt is done in panels of queries and
stretches of keys, so that memory stays bounded; softmax is then taken online: largest score, sum
of weights and weighted sum of V are carried along, and fade when a larger score appears (Milakov
and Gimelshein, 2018). Panels, stretches and tiles follow from the sequence's own lengths alone.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.reference._formats import widened
from pagedcache.backends.reference._memory import Scratch
from pagedcache.backends.reference._storage import NumpyStorage

__all__ = ["LayerReader", "attend_sequence"]

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

# OpenBLAS uses one thread where m * n * k <= 2**18. Measured with 0.3.31 on 1 and 2 threads: up to
# there the bits agree for every shape tried, at twice that they differ for every shape. The
# throughput of 32 x 128 x 64 is that of much larger products. Heads of one element become matrix
# times vector, which stays on one thread below 9216 elements: so the largest tiles are 32 x 256.
# Heads wider than 2048 would need smaller tiles than the smallest here.
SERIAL_PRODUCT = 2**18
ROW_TILES = (4, 32)  # smallest and largest
KEY_TILES = (32, 256)  # smallest and largest; sizes are multiples of the smallest
WORKING_SET = 2**18  # float32 values of scores, and of K, to hold at a time


class LayerReader:
    """The K and V of one layer, read by rows of one token (NHD) or one token and head (HND)."""

    def __init__(self, storage: NumpyStorage, layer: int, scratch: Scratch) -> None:
        self.scratch = scratch
        spec = storage.spec
        key, value = storage.raw(layer)
        self.kv_heads, self.head_dim, self.v_head_dim = spec.kv_heads, spec.head_dim, spec.v_head_dim
        self._block_size, self._by_head = spec.block_size, spec.layout == "HND"
        row_axes = 3 if self._by_head else 2
        self._key = key.reshape(-1, *key.shape[row_axes:])
        self._value = value.reshape(-1, *value.shape[row_axes:])
        self._offsets = np.arange(self._block_size)
        self._heads = np.arange(self.kv_heads)[:, None] * self._block_size

    def rows(self, table: npt.NDArray[np.int32], start: int, stop: int) -> Int64:
        """Return where the tokens [start, stop) of a sequence are: [tokens], or [heads, tokens] by head."""
        first = start // self._block_size
        blocks = table[first : (stop - 1) // self._block_size + 1].astype(np.int64)
        blocks *= self._block_size * (self.kv_heads if self._by_head else 1)
        rows = (blocks[:, None] + self._offsets).reshape(-1)
        rows = rows[start - first * self._block_size : stop - first * self._block_size]
        return rows + self._heads if self._by_head else rows

    def read(self, rows: Int64, size: int) -> tuple[Float32, Float32]:
        """Return K [heads, size, head_dim] and V [heads, size, v_head_dim], valid until the next call.

        Beyond the given rows the last one is repeated: its scores are masked there, and whatever
        it holds, it cannot spoil more than where it counts. Slots that hold no token are not read.
        """
        count = rows.shape[-1]
        padded = self.scratch.array("rows", (*rows.shape[:-1], size), np.int64)
        padded[..., :count] = rows
        padded[..., count:] = rows[..., -1:]
        return self._gathered("K", self._key, padded), self._gathered("V", self._value, padded)

    def _gathered(self, name: str, plane: npt.NDArray[Any], rows: Int64) -> Float32:
        shape = (*rows.shape, *plane.shape[1:])
        # mode="clip" writes straight to `out`; step_rows has found every row within the plane.
        stored = plane.take(rows, axis=0, out=self.scratch.array(name, shape, plane.dtype.type), mode="clip")
        tokens = stored
        if stored.dtype != np.float32:
            tokens = widened(stored, out=self.scratch.array(name, shape, np.float32))
        return tokens if self._by_head else tokens.transpose(1, 0, 2)


def attend_sequence(
    layer: LayerReader, q: Float32, table: npt.NDArray[np.int32], start: int, kv_len: int, out: Float32, lse: Float32
) -> None:
    """Fill `out` and `lse` with the attention of the last queries of a sequence to its keys.

    Parameters
    ----------
    layer : LayerReader
        Where K and V are.
    q : float32 [q_len, q_heads, head_dim]
        Queries, times the scale. The last stands at row coordinate ``kv_len - 1``, and each sees
        the keys from `start` to its own coordinate.
    table : int32 [width]
        Blocks of the sequence; read only where they hold those keys.
    out : float32 [q_len, q_heads, v_head_dim]
        0 where a query sees no key.
    lse : float32 [q_len, q_heads]
        Natural logarithm of the sum of exp(score); -inf where a query sees no key.
    """
    q_len, q_heads, _ = q.shape
    blind = min(q_len, max(0, start - (kv_len - q_len)))  # leading queries, which stand before every key
    out[:blind], lse[:blind] = 0, -np.inf
    if blind == q_len:
        return
    group = q_heads // layer.kv_heads
    row_tile, key_tile = _tiles(q_len * group, max(layer.head_dim, layer.v_head_dim))
    panel = max(1, WORKING_SET // (layer.kv_heads * key_tile * group))  # queries
    rows = layer.rows(table, start, kv_len)
    for begin in range(blind, q_len, panel):
        end = min(begin + panel, q_len)
        first = kv_len - q_len + begin - start  # the key where query `begin` stands
        seen = rows[..., : first + end - begin]
        _attend_panel(layer, q[begin:end], seen, first, row_tile, key_tile, out[begin:end], lse[begin:end])


def _tiles(rows: int, width: int) -> tuple[int, int]:
    """Rows and keys of a matrix product, for so many rows in all and heads of this width."""
    row_tile = min(ROW_TILES[1], -(-rows // ROW_TILES[0]) * ROW_TILES[0])
    if row_tile * KEY_TILES[0] * width > SERIAL_PRODUCT:
        row_tile = ROW_TILES[0]
    key_tile = SERIAL_PRODUCT // (row_tile * width) // KEY_TILES[0] * KEY_TILES[0]
    return row_tile, min(max(key_tile, KEY_TILES[0]), KEY_TILES[1])


def _attend_panel(
    layer: LayerReader, q: Float32, rows: Int64, first: int, row_tile: int, key_tile: int, out: Float32, lse: Float32
) -> None:
    """Attend from some queries to the keys of `rows`: query i to the keys 0 ... first + i, so to one at least."""
    queries, q_heads, _ = q.shape
    heads, group = layer.kv_heads, q_heads // layer.kv_heads
    packed = _packed(q, heads, row_tile)  # [heads, row tiles, row_tile, head_dim]
    num_rows = packed.shape[1] * row_tile
    stretch = key_tile * max(1, WORKING_SET // (key_tile * heads * max(num_rows, layer.head_dim)))
    top = total = acc = np.empty(0, np.float32)  # the first stretch sets them
    for begin in range(0, rows.shape[-1], stretch):
        count = min(stretch, rows.shape[-1] - begin)
        num_parts = -(-count // key_tile)  # of equal size, so that little is filled up
        part = -(-count // (num_parts * KEY_TILES[0])) * KEY_TILES[0]
        key, value = layer.read(rows[..., begin : begin + count], num_parts * part)
        live = max(0, begin - first) * group // row_tile  # the first row tile that sees any of these keys

        scores = _scores(packed[:, live:], key, part, layer.scratch)
        scores[..., count:] = -np.inf
        if begin + count - 1 > first:  # not every query sees all of these keys
            row = np.arange(live * row_tile, num_rows).reshape(-1, row_tile, 1)
            unseen = np.arange(begin, begin + num_parts * part) > first + row // group
            np.copyto(scores, -np.inf, where=unseen)

        peak = scores.max(axis=-1, keepdims=True)
        if begin > 0:
            np.maximum(peak, top[:, live:], out=peak)
        np.subtract(scores, peak, out=scores)
        weights = np.exp(scores, out=scores)
        weight = weights.sum(axis=-1, keepdims=True)
        weighted = _weighted(weights, value, part, layer.scratch)
        if begin == 0:
            top, total, acc = peak, weight, weighted
        else:
            fade = np.exp(top[:, live:] - peak)
            top[:, live:] = peak
            total[:, live:] = total[:, live:] * fade + weight
            acc[:, live:] = acc[:, live:] * fade + weighted

    lse[...] = _unpacked(top + np.log(total), queries, q_heads)[..., 0]
    acc /= total
    out[...] = _unpacked(acc, queries, q_heads)


def _scores(packed: Float32, key: Float32, part: int, scratch: Scratch) -> Float32:
    """[heads, row tiles, row_tile, d], [heads, keys, d] -> [heads, row tiles, row_tile, keys]."""
    heads, num_tiles, row_tile, width = packed.shape
    scores = scratch.array("scores", (heads, num_tiles, row_tile, key.shape[1]), np.float32)
    by_part = scores.reshape(heads, num_tiles, row_tile, -1, part).swapaxes(2, 3)
    np.matmul(packed[:, :, None], key.reshape(heads, 1, -1, part, width).swapaxes(3, 4), out=by_part)
    return scores


def _weighted(weights: Float32, value: Float32, part: int, scratch: Scratch) -> Float32:
    """[heads, row tiles, row_tile, keys], [heads, keys, v_d] -> [heads, row tiles, row_tile, v_d]."""
    heads, num_tiles, row_tile, _ = weights.shape
    by_part = weights.reshape(heads, num_tiles, row_tile, -1, part).swapaxes(2, 3)
    by_key = value.reshape(heads, 1, -1, part, value.shape[2])
    sums = scratch.array("sums", (*by_part.shape[:-1], value.shape[2]), np.float32)
    np.matmul(by_part, by_key, out=sums)
    total: Float32 = sums.sum(axis=2)
    return total


def _packed(q: Float32, heads: int, row_tile: int) -> Float32:
    """[queries, q_heads, d] -> [heads, row tiles, row_tile, d], zeros in the last rows."""
    queries, q_heads, width = q.shape
    rows = queries * q_heads // heads
    packed = np.zeros((heads, -(-rows // row_tile) * row_tile, width), np.float32)
    by_query = packed[:, :rows].reshape(heads, queries, -1, width)
    by_query[...] = q.reshape(queries, heads, -1, width).swapaxes(0, 1)
    return packed.reshape(heads, -1, row_tile, width)


def _unpacked(packed: Float32, queries: int, q_heads: int) -> Float32:
    """[heads, row tiles, row_tile, d] -> [queries, q_heads, d]."""
    heads, _, _, width = packed.shape
    rows = packed.reshape(heads, -1, width)[:, : queries * q_heads // heads]
    return rows.reshape(heads, queries, -1, width).swapaxes(0, 1).reshape(queries, q_heads, width)
