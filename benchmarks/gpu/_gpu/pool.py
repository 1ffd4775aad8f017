"""Storage full of numbers for a case, a step over it, and queries."""

from functools import cache

import numpy as np

from pagedcache import CacheSpec
from pagedcache.core import Step

CHUNK = 1 << 23  # numbers that memory is filled with, again and again


class Pool:
    """One layer of a case: every block of random numbers, at random places of the block tables."""

    def __init__(self, device, case, layers=1):
        q_heads, kv_heads, size = case.heads
        counts = [-(-n // case.block_size) for n in case.kv_lens]
        self.device, self.case, rng = device, case, np.random.default_rng(0)
        spec = CacheSpec(layers, kv_heads, size, dtype=case.dtype, block_size=case.block_size)
        self.storage = device.backend.allocate(spec, sum(counts))
        for arrays in self.storage.export(writable=True):
            for array in arrays:
                fill(device, array, numbers(case.dtype if array.ndim == 4 else "scales")[: array.size])
        ids = rng.permutation(sum(counts)).astype(np.int32) + 1
        tables = np.zeros((len(counts), max(counts)), np.int32)
        for row, end, count in zip(tables, np.cumsum(counts), counts, strict=True):
            row[:count] = ids[end - count : end]
        self.tables = tables
        self.step = self.new_step()
        self.q = self._rows(q_heads)
        self.out = device.empty(self.q.shape, np.float32 if case.dtype == "bfloat16" else np.float16)

    def new_step(self):
        """A step that nothing is known of yet: a backend plans it when it is attended to."""
        indptr = np.concatenate([[0], np.cumsum(self.case.q_lens)])
        return Step.from_arrays(self.tables, self.case.kv_lens, indptr, block_size=self.case.block_size)

    def attend(self, step=None, layer=0):
        self.device.backend.attend(self.storage, layer, self.q, self.step if step is None else step, out=self.out)

    def new_tokens(self):
        """K and V for the step's tokens, as `write` takes them."""
        return [self._rows(self.case.heads[1]) for _ in range(2)]

    def _rows(self, heads):
        """Numbers for the step's tokens: float16, or the bits of bfloat16 where that is stored."""
        shape = (sum(self.case.q_lens), heads, self.case.heads[2])
        dtype = "bfloat16" if self.case.dtype == "bfloat16" else "float16"
        return self.device.put(np.resize(numbers(dtype), shape))


@cache
def numbers(dtype):
    """Random numbers as they are stored: normal ones, or bytes of 8-bit types, with scales that make them about 1."""
    rng = np.random.default_rng(0)
    if dtype == "scales":
        return np.full(CHUNK, 0.01, np.float32)
    if dtype == "int8":
        return rng.integers(-127, 128, CHUNK, np.int8)
    if dtype == "float8_e4m3":  # none of them is a NaN
        return rng.integers(0, 256, CHUNK, np.uint8) & np.uint8(0xF7)
    normal = rng.standard_normal(CHUNK, np.float32)
    return normal.astype(np.float16) if dtype == "float16" else (normal.view(np.uint32) >> 16).astype(np.uint16)


def fill(device, array, values):
    """Write values into an array of the device, from its start again and again."""
    flat = array.reshape(-1)
    flat = flat.view(values.dtype) if flat.dtype != values.dtype else flat
    source = device.put(values)
    for begin in range(0, flat.size, values.size):
        part = flat[begin : begin + values.size]
        part[...] = source[: part.size]
