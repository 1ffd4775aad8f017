"""OpenVINO's PagedAttention on its CPU plugin: a model of that one node. Blocks are of 32 tokens.

The node stores the new tokens' K and V itself and takes q, K and V as float32. float16 is left out: without the
instructions for it, OpenVINO computes in bfloat16.
"""

import functools
import math

import numpy as np
import openvino as ov
from openvino import opset13 as op
from openvino.op import _PagedAttentionExtension

from _attention import data
from _attention.side import Side, Unsupported

BLOCK_SIZE = 32
TYPES = {"fp32": ov.Type.f32, "bf16": ov.Type.bf16}


def version(options):
    return f"openvino {ov.__version__.split('-')[0]}"


def open_sides(cell, options):
    if cell.dtype not in TYPES:
        raise Unsupported("float32 and bfloat16 only")
    if cell.dtype == "bf16" and "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise Unsupported("no bfloat16 on this CPU")
    if cell.group in ("tax", "append", "floor"):
        raise Unsupported("not compared")
    return {"openvino": Attend(cell, options.threads)}


@functools.cache
def compiled(heads, dtype, threads):
    q_heads, kv_heads, size = heads
    inputs = []

    def parameter(name, kind, shape):
        node = op.parameter(ov.PartialShape(shape), kind)
        node.set_friendly_name(name)
        node.output(0).get_tensor().set_names({name})
        inputs.append(node)
        return node

    def constant(value, kind):
        return op.constant(np.array(value, kind))

    none = functools.partial(constant, [])
    arguments = [parameter("q", ov.Type.f32, [-1, q_heads * size])]
    arguments += [parameter(name, ov.Type.f32, [-1, kv_heads * size]) for name in "kv"]
    arguments += [parameter(f"{name}_cache.0", ov.Type.dynamic, [-1, kv_heads, -1, -1]) for name in ("key", "value")]
    lists = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
    arguments += [parameter(name, ov.Type.i32, [-1]) for name in lists]
    arguments += [constant(1 / math.sqrt(size), np.float32)]  # scale
    arguments += [constant(0, np.int32), none(np.float32)]  # no window, no ALiBi
    arguments += [parameter("max_context_len", ov.Type.i32, [])]
    arguments += [none(np.int32)] * 3 + [none(np.float32)] * 2  # eviction scores, rotation of the cache, xattention ...
    arguments += [constant(64, np.int32), constant(8, np.int32), none(np.float32), constant(0, np.int32)]
    arguments += [none(np.int32)] * 4 + [none(np.uint8), none(np.int32)]  # ... and the rest of what is not used here
    node = _PagedAttentionExtension([argument.output(0) for argument in arguments])
    about = {"num_k_heads": kv_heads, "k_head_size": size, "num_v_heads": kv_heads, "v_head_size": size}
    for name, value in about.items():
        node.get_rt_info()[name] = value
    settings = {
        "INFERENCE_PRECISION_HINT": TYPES[dtype],
        "KV_CACHE_PRECISION": TYPES[dtype],
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    return ov.Core().compile_model(ov.Model([node.output(0)], inputs), "CPU", settings)


class Attend(Side):
    def __init__(self, cell, threads):
        super().__init__(cell)
        self.request = compiled(cell.heads, cell.dtype, threads).create_infer_request()
        tables, blocks = data.block_tables(cell, BLOCK_SIZE)
        self.caches = [
            [self._cache(tables, blocks, layer, source) for source in (data.keys, data.values)]
            for layer in range(self.buffers)
        ]
        counts = [-(-n // BLOCK_SIZE) for n in cell.kv_lens]
        tokens = sum(cell.q_lens)
        self.inputs = {
            "q": data.widened(data.queries(cell)).reshape(tokens, -1),
            "k": data.widened(data.new_tokens(cell, 0, data.keys)).reshape(tokens, -1),
            "v": data.widened(data.new_tokens(cell, 0, data.values)).reshape(tokens, -1),
            "past_lens": np.subtract(cell.kv_lens, cell.q_lens).astype(np.int32),
            "subsequence_begins": data.indptr(cell.q_lens),
            "block_indices": np.concatenate([row[:n] for row, n in zip(tables, counts, strict=True)]),
            "block_indices_begins": data.indptr(counts),
            "max_context_len": np.array(max(cell.kv_lens), np.int32),
        }
        for name, array in self.inputs.items():
            self.request.set_tensor(name, ov.Tensor(array))

    def _cache(self, tables, blocks, layer, source):
        """A tensor [blocks, kv_heads, 32, size] in huge pages."""
        _, kv_heads, size = self.cell.heads
        array = data.huge_array((blocks, kv_heads, BLOCK_SIZE, size), data.value_type(self.cell.dtype))
        for i, table in enumerate(tables):
            positions = np.arange(self.cell.kv_lens[i])
            array[table[positions // BLOCK_SIZE], :, positions % BLOCK_SIZE] = source(self.cell, layer, i)
        self.memory = [*getattr(self, "memory", []), array]  # a Tensor does not keep it
        return ov.Tensor(array, ov.Shape(array.shape), TYPES[self.cell.dtype])

    def call(self, i):
        k, v = self.caches[i]
        self.request.set_tensor("key_cache.0", k)
        self.request.set_tensor("value_cache.0", v)
        self.request.infer()

    def output(self):
        return self.request.get_output_tensor(0).data.reshape(-1, self.cell.heads[0], self.cell.heads[2])
