"""torch on dense caches [batch, kv_heads, tokens, size], no paging: three ways to write it; the best counts."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from _attention import data
from _attention.cells import BLOCK_SIZE
from _attention.side import Side, Unsupported
from _attention.torch_memory import TYPES, huge, start, tensor


def version(options):
    return f"torch {torch.__version__}"


def open_sides(cell, options):
    start(options.threads)
    if cell.dtype == "int8":
        raise Unsupported("no 8-bit cache")
    if cell.group == "append":
        return {"torch index_copy": IndexCopy(cell)}
    if cell.group not in ("decode", "prefill") or not cell.uniform:
        raise Unsupported("dense caches hold sequences of one length")
    caches = dense_caches(cell)
    kinds = {"torch sdpa": Sdpa}
    if cell.decodes:
        kinds |= {"torch folded": Folded, "torch matmul": Matmul}
    return {name: kind(cell, caches) for name, kind in kinds.items()}


def dense_caches(cell):
    """Of every layer K and V, shared by the three ways."""
    caches = []
    shape = (len(cell.kv_lens), cell.heads[1], cell.kv_lens[0], cell.heads[2])
    for layer in range(cell.buffers):
        pair = [huge(shape, TYPES[cell.dtype]) for _ in "kv"]
        for i in range(len(cell.kv_lens)):
            for cache, source in zip(pair, (data.keys, data.values), strict=True):
                cache[i].copy_(tensor(source(cell, layer, i), cell.dtype).transpose(0, 1))
        caches.append(pair)
    return caches


class Dense(Side):
    def __init__(self, cell, caches):
        super().__init__(cell)
        self.caches = caches
        batch, (q_heads, kv_heads, size) = len(cell.kv_lens), cell.heads
        q = tensor(data.queries(cell), cell.dtype).view(batch, -1, q_heads, size).transpose(1, 2)
        self.q = q.contiguous()
        self.folded = self.q.view(batch, kv_heads, -1, size)  # with one query, heads of a group beside each other

    def output(self):
        batch, (q_heads, _, size) = len(self.cell.kv_lens), self.cell.heads
        return self.out.reshape(batch, q_heads, -1, size).transpose(1, 2).reshape(-1, q_heads, size).float().numpy()


class Sdpa(Dense):
    """scaled_dot_product_attention as its documentation has it."""

    def call(self, i):
        k, v = self.caches[i]
        causal, grouped = not self.cell.decodes, self.cell.heads[0] != self.cell.heads[1]
        self.out = scaled_dot_product_attention(self.q, k, v, is_causal=causal, enable_gqa=grouped)


class Folded(Dense):
    """The query heads of a group as queries of one head: K and V are read once per group."""

    def call(self, i):
        k, v = self.caches[i]
        self.out = scaled_dot_product_attention(self.folded, k, v)


class Matmul(Dense):
    """Product, softmax, product."""

    def call(self, i):
        k, v = self.caches[i]
        weights = torch.softmax(torch.matmul(self.folded, k.transpose(2, 3)).mul_(self.scale), dim=-1)
        self.out = torch.matmul(weights, v)


class IndexCopy(Side):
    """New tokens stored row by row into pools [slots, kv_heads, size]."""

    def __init__(self, cell):
        super().__init__(cell)
        tables, blocks = data.block_tables(cell, BLOCK_SIZE)
        self.slots = torch.from_numpy(data.new_slots(cell, tables, BLOCK_SIZE))
        self.new = [tensor(data.new_tokens(cell, 0, kind), cell.dtype) for kind in (data.keys, data.values)]
        shape = (blocks * BLOCK_SIZE, *cell.heads[1:])
        self.pools = [[huge(shape, TYPES[cell.dtype]).fill_(1) for _ in "kv"] for _ in range(self.buffers)]

    def call(self, i):
        for pool, new in zip(self.pools[i], self.new, strict=True):
            pool.index_copy_(0, self.slots, new)

    def output(self):
        if not torch.equal(self.pools[0][0][self.slots], self.new[0]):
            raise AssertionError("what was copied is not there")
