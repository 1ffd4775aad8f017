"""Attention of some queries to the keys of one block table, in float32.

For query i, key j, and the query head h that reads a KV head::

    score  = scale * q[i] . k[j]
    score  = softcap * tanh(score / softcap)                     where there is a cap
    score += alibi_slopes[h] * (position of j - position of i)   where there are slopes
    score  = -inf                                                where i does not see j (host/sight.py)
    out[i] = sum over j of exp(score) * v[j]  /  total
    total  = sum over j of exp(score)  +  exp(sink_logits[h])    the last where there are such
    lse[i] = log(total)

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

import numpy as np
import numpy.typing as npt

from pagedcache.backends.host.rule import Rule
from pagedcache.backends.host.sight import Int64, Sight
from pagedcache.backends.reference._reader import LayerReader
from pagedcache.backends.reference._scratch import Scratch

__all__ = ["attend"]

Float32 = npt.NDArray[np.float32]

# OpenBLAS uses one thread where m * n * k <= 2**18. Measured with 0.3.31 on 1 and 2 threads: up to
# there the bits agree for every shape tried, at twice that they differ for every shape. The
# throughput of 32 x 128 x 64 is that of much larger products. Heads of one element become matrix
# times vector, which stays on one thread below 9216 elements: so the largest tiles are 32 x 256.
# Heads wider than 2048 would need smaller tiles than the smallest here.
SERIAL_PRODUCT = 2**18
ROW_TILES = (4, 32)  # smallest and largest
KEY_TILES = (32, 256)  # smallest and largest; sizes are multiples of the smallest
WORKING_SET = 2**18  # float32 values of scores, and of K, to hold at a time


def attend(layer: LayerReader, q: Float32, sight: Sight, rule: Rule, out: Float32, lse: Float32) -> None:
    """Fill `out` and `lse` with the attention of queries to the keys that they see.

    Parameters
    ----------
    layer : LayerReader
        Where K and V are.
    q : float32 [queries, q_heads, head_dim]
        Times the scale.
    sight : Sight
        Where the keys are, and which of them each query sees.
    rule : Rule
        The variants.
    out : float32 [queries, q_heads, v_head_dim]
        0 where a query sees no key.
    lse : float32 [queries, q_heads]
        -inf where a query sees no key and there are no sink logits.
    """
    queries, q_heads, _ = q.shape
    group = q_heads // layer.kv_heads
    tiles = _tiles(queries * group, max(layer.head_dim, layer.v_head_dim))
    panel = max(1, WORKING_SET // (layer.kv_heads * tiles[1] * group))  # queries
    for begin in range(0, queries, panel):
        chosen = slice(begin, begin + panel)
        _attend_panel(layer, q[chosen], sight.panel(chosen), rule, tiles, out[chosen], lse[chosen])


def _tiles(rows: int, width: int) -> tuple[int, int]:
    """Rows and keys of a matrix product, for so many rows in all and heads of this width."""
    row_tile = min(ROW_TILES[1], -(-rows // ROW_TILES[0]) * ROW_TILES[0])
    if row_tile * KEY_TILES[0] * width > SERIAL_PRODUCT:
        row_tile = ROW_TILES[0]
    key_tile = SERIAL_PRODUCT // (row_tile * width) // KEY_TILES[0] * KEY_TILES[0]
    return row_tile, min(max(key_tile, KEY_TILES[0]), KEY_TILES[1])


def _attend_panel(
    layer: LayerReader, q: Float32, sight: Sight, rule: Rule, tiles: tuple[int, int], out: Float32, lse: Float32
) -> None:
    """Attend from queries that fit into memory together."""
    queries, q_heads, _ = q.shape
    heads, (row_tile, key_tile) = layer.kv_heads, tiles
    packed = _packed(q, heads, row_tile)  # [heads, row tiles, row_tile, head_dim]
    num_rows = packed.shape[1] * row_tile
    stretch = key_tile * max(1, WORKING_SET // (key_tile * heads * max(num_rows, layer.head_dim)))

    # Per row: largest score, sum of weights, weighted sum of V. A sink logit is a score whose V is 0.
    top = np.full((*packed.shape[:-1], 1), -np.inf, np.float32)
    if rule.sink_logits is not None:
        top = _packed(np.broadcast_to(rule.sink_logits[:, None], (queries, q_heads, 1)), heads, row_tile)
    total = (top > -np.inf).astype(np.float32)
    acc = np.zeros((*packed.shape[:-1], layer.v_head_dim), np.float32)

    keys = sight.keys
    rows = layer.rows(sight.table, sight.spans)
    for begin in range(0, len(keys), stretch):
        here = keys[begin : begin + stretch]
        num_parts = -(-len(here) // key_tile)  # of equal size, so that little is filled up
        part = -(-len(here) // (num_parts * KEY_TILES[0])) * KEY_TILES[0]
        key, value = layer.read(rows[..., begin : begin + stretch], num_parts * part)

        scores = _scores(packed, key, part, layer.scratch)
        scores[..., len(here) :] = -np.inf  # filled up
        by_row = scores.reshape(heads, num_rows, -1)[:, : queries * q_heads // heads, : len(here)]
        _complete(by_row.reshape(heads, queries, -1, len(here)), sight, here, rule)

        peak = np.maximum(scores.max(axis=-1, keepdims=True), top)
        base = np.where(peak == -np.inf, np.float32(0), peak)  # without a score yet, every weight is exp(-inf)
        weights = np.exp(np.subtract(scores, base, out=scores), out=scores)
        fade = np.exp(top - base)
        top = peak
        total = total * fade + weights.sum(axis=-1, keepdims=True)
        acc = acc * fade + _weighted(weights, value, part, layer.scratch)

    lse[...] = _unpacked(top + np.log(total), queries, q_heads)[..., 0]
    acc /= np.where(total == 0, np.float32(1), total)
    out[...] = _unpacked(acc, queries, q_heads)


def _complete(scores: Float32, sight: Sight, keys: Int64, rule: Rule) -> None:
    """Turn products into scores: cap, slopes and mask, in place, [heads, queries, group, keys]."""
    heads, _, group, _ = scores.shape
    if rule.softcap is not None:
        scores /= np.float32(rule.softcap)
        np.tanh(scores, out=scores)
        scores *= np.float32(rule.softcap)
    if rule.alibi_slopes is not None:
        scores += rule.alibi_slopes.reshape(heads, 1, group, 1) * sight.distances(keys)[:, None]
    seen = sight.seen(keys)
    if seen is not None:
        np.copyto(scores, -np.inf, where=~seen[:, None])


def _scores(packed: Float32, key: Float32, part: int, scratch: Scratch) -> Float32:
    """[heads, row tiles, row_tile, d], [heads, keys, d] -> [heads, row tiles, row_tile, keys]."""
    heads, num_tiles, row_tile, width = packed.shape
    scores = scratch.array("scores", (heads, num_tiles, row_tile, key.shape[1]), np.float32)
    by_part = scores.reshape(heads, num_tiles, row_tile, -1, part).swapaxes(2, 3)
    np.matmul(packed[:, :, None], key.reshape(heads, 1, -1, part, width).swapaxes(3, 4), out=by_part)
    return scores


def _weighted(weights: Float32, value: Float32, part: int, scratch: Scratch) -> Float32:
    """[heads, row tiles, row_tile, keys], [heads, keys, v_d] -> [heads, row tiles, row_tile, v_d].

    A value that is not finite counts only where it has weight, although 0 * inf is NaN.
    """
    sums = _products(weights, value, part, scratch)
    if np.isfinite(sums).all():
        return sums
    sums = _products(weights, np.where(np.isfinite(value), value, np.float32(0)), part, scratch)
    has_weight = (weights != 0).astype(np.float32)
    for odd, where in ((np.nan, np.isnan(value)), (np.inf, value == np.inf), (-np.inf, value == -np.inf)):
        sums[_products(has_weight, where.astype(np.float32), part, scratch) > 0] += np.float32(odd)
    return sums


def _products(weights: Float32, value: Float32, part: int, scratch: Scratch) -> Float32:
    """The matrix products of `_weighted`."""
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
