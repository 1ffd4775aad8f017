"""Values, block tables and memory, the same for every side; and the float64 attention that outputs are checked against.

NumPy alone, since each side runs in its own environment. bfloat16 is uint16 bits here; cells of 8 bits get bfloat16
values, and each side stores them in its own way.
"""

import functools
import mmap

import numpy as np

VALUES = 4_000_037  # random numbers that all data is taken from, a row of heads at a time
HUGE = 2 << 20
TOLERANCE = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 3e-2, "int8": 1e-1}  # largest error; the outputs are about 1 or less


def value_type(dtype):
    """NumPy dtype of K, V and q."""
    return {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16)}.get(dtype, np.dtype(np.uint16))


def narrowed(values, dtype):
    """Round float32 values to nearest even; bfloat16 as bits."""
    if value_type(dtype) != np.uint16:
        return values.astype(value_type(dtype))
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(np.uint16)


def widened(values):
    """Stored values as float32."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32, copy=False)


@functools.cache
def _normals(dtype):
    return narrowed(np.random.default_rng(11).standard_normal(VALUES, dtype=np.float32), dtype)


def _rows(dtype, start, count, heads, size):
    """Random values [count, heads, size] from row `start` of an endless supply."""
    period = VALUES // (heads * size)
    rows = _normals(dtype)[: period * heads * size].reshape(period, heads, size)
    return rows[(start + np.arange(count)) % period]


def keys(cell, layer, sequence):
    """K [kv_len, kv_heads, size] of a sequence, of value_type."""
    return _rows(cell.dtype, 131 * layer + 977 * sequence, cell.kv_lens[sequence], *cell.heads[1:])


def values(cell, layer, sequence):
    """V [kv_len, kv_heads, size] of a sequence, of value_type."""
    return _rows(cell.dtype, 131 * layer + 977 * sequence + 499, cell.kv_lens[sequence], *cell.heads[1:])


def queries(cell):
    """q [tokens, q_heads, size], of value_type; the same in every layer."""
    return _rows(cell.dtype, 251, sum(cell.q_lens), cell.heads[0], cell.heads[2])


def new_tokens(cell, layer, source):
    """The last q_len rows of every sequence of `source` (keys or values), one after the other."""
    parts = [source(cell, layer, i)[-n:] for i, n in enumerate(cell.q_lens)]
    return np.concatenate(parts)


def indptr(lens):
    """int32 [n + 1], where each sequence begins."""
    return np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)


def block_tables(cell, block_size, kind="random"):
    """int32 [sequences, width] of block ids from 0 on, and how many blocks there are; 0 beyond a sequence's end."""
    counts = [-(-n // block_size) for n in cell.kv_lens]
    total = sum(counts)
    ids = np.arange(total) if kind == "sequential" else np.random.default_rng(5).permutation(total)
    tables = np.zeros((len(counts), max(counts)), np.int32)
    for row, start, count in zip(tables, indptr(counts), counts, strict=False):
        row[:count] = ids[start : start + count]
    return tables, total


def slots(table, block_size, positions):
    """int64 slots of positions of the sequence with this block table."""
    return table[positions // block_size].astype(np.int64) * block_size + positions % block_size


def new_slots(cell, tables, block_size):
    """int64 [tokens]: where the last q_len tokens of every sequence are."""
    lens = zip(tables, cell.kv_lens, cell.q_lens, strict=True)
    return np.concatenate([slots(table, block_size, np.arange(kv - q, kv)) for table, kv, q in lens])


def huge_array(shape, dtype):
    """An array of zeros in memory for which huge pages were asked, aligned to them."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    memory = mmap.mmap(-1, nbytes + 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    start = -raw.ctypes.data % HUGE
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def largest_error(cell, output):
    """Largest error of an output [tokens, q_heads, size] over layer 0, against float64.

    Looked at are the first, a middle and the last query of the first and the last sequence.
    """
    starts = indptr(cell.q_lens)
    q = widened(queries(cell)).astype(np.float64)
    worst = 0.0
    for sequence in {0, len(cell.kv_lens) - 1}:
        k, v = (widened(source(cell, 0, sequence)) for source in (keys, values))
        length, count = cell.kv_lens[sequence], cell.q_lens[sequence]
        for i in {0, count // 2, count - 1}:
            seen = length - count + i + 1
            expected = _attention(q[starts[sequence] + i], k[:seen], v[:seen])
            worst = max(worst, float(np.abs(output[starts[sequence] + i] - expected).max()))
            if not np.isfinite(output[starts[sequence] + i]).all():
                return float("inf")
    return worst


def _attention(q, k, v):
    group = len(q) // k.shape[1]
    out = np.empty_like(q)
    for head in range(len(q)):
        scores = k[:, head // group].astype(np.float64) @ q[head] / np.sqrt(q.shape[1])
        weights = np.exp(scores - scores.max())
        out[head] = weights @ v[:, head // group].astype(np.float64) / weights.sum()
    return out
