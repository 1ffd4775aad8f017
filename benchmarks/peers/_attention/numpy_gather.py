"""NumPy alone: gather the blocks of a sequence, then two batched products; what one writes without any kernel."""

import numpy as np

from _attention import data
from _attention.cells import BLOCK_SIZE
from _attention.side import Side, Unsupported


def version(options):
    return f"numpy {np.__version__}"


def open_sides(cell, options):
    if cell.dtype not in ("fp32", "fp16"):
        raise Unsupported("NumPy has no bfloat16")
    if cell.group not in ("decode", "ragged"):
        raise Unsupported("decoding only")
    return {"numpy": Gather(cell)}


class Gather(Side):
    def __init__(self, cell):
        super().__init__(cell)
        self.tables, blocks = data.block_tables(cell, BLOCK_SIZE)
        self.pools = []
        shape = (blocks, BLOCK_SIZE, *cell.heads[1:])
        for layer in range(self.buffers):
            pair = [data.huge_array(shape, data.value_type(cell.dtype)) for _ in "kv"]
            for i, table in enumerate(self.tables):
                at = data.slots(table, BLOCK_SIZE, np.arange(cell.kv_lens[i]))
                for pool, source in zip(pair, (data.keys, data.values), strict=True):
                    pool.reshape(-1, *cell.heads[1:])[at] = source(cell, layer, i)
            self.pools.append(pair)
        self.q = data.widened(data.queries(cell))

    def call(self, i):
        _, kv_heads, size = self.cell.heads
        q = self.q.reshape(len(self.q), kv_heads, -1, size)
        self.out = np.empty_like(q)
        for row, (table, length) in enumerate(zip(self.tables, self.cell.kv_lens, strict=True)):
            blocks = table[: -(-length // BLOCK_SIZE)]
            k, v = (pool[blocks].reshape(-1, kv_heads, size)[:length] for pool in self.pools[i])
            k, v = k.astype(np.float32, copy=False), v.astype(np.float32, copy=False)
            weights = np.matmul(q[row], k.transpose(1, 2, 0)) * np.float32(self.scale)
            weights -= weights.max(-1, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(-1, keepdims=True)
            self.out[row] = np.matmul(weights, v.transpose(1, 0, 2))

    def output(self):
        return self.out.reshape(self.q.shape)
