"""ONNX Runtime's GroupQueryAttention on dense caches: a model of that one node, past and present in one buffer.

The node stores the new tokens' K and V itself. It has no bfloat16 on CPUs, and its PagedAttention has no CPU kernel.
"""

import functools

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from _attention import data
from _attention.side import Side, Unsupported

TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}


def version(options):
    return f"onnxruntime {ort.__version__}"


def open_sides(cell, options):
    if cell.dtype not in TYPES:
        raise Unsupported("no kernel for this type on CPUs")
    if cell.group not in ("decode", "prefill") or not cell.uniform:
        raise Unsupported("dense caches hold sequences of one length")
    return {"onnxruntime": Attend(cell, options.threads)}


@functools.cache
def session(heads, dtype, threads):
    q_heads, kv_heads, size = heads
    shapes = {
        "q": ["batch", "new", q_heads * size],
        "k": ["batch", "new", kv_heads * size],
        "v": ["batch", "new", kv_heads * size],
        "past_k": ["batch", kv_heads, "room", size],
        "past_v": ["batch", kv_heads, "room", size],
        "last": ["batch"],
        "total": [],
        "out": ["batch", "new", q_heads * size],
        "present_k": ["batch", kv_heads, "room", size],
        "present_v": ["batch", kv_heads, "room", size],
    }
    kinds = dict.fromkeys(shapes, TYPES[dtype]) | {"last": TensorProto.INT32, "total": TensorProto.INT32}
    infos = {name: helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in shapes.items()}
    names = list(shapes)
    node = helper.make_node(
        "GroupQueryAttention", names[:7], names[7:], domain="com.microsoft", num_heads=q_heads, kv_num_heads=kv_heads
    )
    graph = helper.make_graph([node], "attention", [infos[n] for n in names[:7]], [infos[n] for n in names[7:]])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Attend(Side):
    def __init__(self, cell, threads):
        super().__init__(cell)
        self.session = session(cell.heads, cell.dtype, threads)
        batch, new = len(cell.kv_lens), cell.q_lens[0]
        rows = {
            "q": data.queries(cell),
            "k": data.new_tokens(cell, 0, data.keys),
            "v": data.new_tokens(cell, 0, data.values),
        }
        self.inputs = {name: np.ascontiguousarray(array.reshape(batch, new, -1)) for name, array in rows.items()}
        self.inputs["last"] = np.array(cell.kv_lens, np.int32) - 1
        self.inputs["total"] = np.array(max(cell.kv_lens), np.int32)
        self.out = ort.OrtValue.ortvalue_from_numpy(np.empty_like(self.inputs["q"]))
        self.memory = []  # an OrtValue does not keep it
        self.bindings = [self._bind(layer) for layer in range(self.buffers)]

    def _bind(self, layer):
        binding = self.session.io_binding()
        for name, array in self.inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, source in (("k", data.keys), ("v", data.values)):
            cache = ort.OrtValue.ortvalue_from_numpy(self._cache(layer, source))
            binding.bind_ortvalue_input(f"past_{name}", cache)
            binding.bind_ortvalue_output(f"present_{name}", cache)
        binding.bind_ortvalue_output("out", self.out)
        return binding

    def _cache(self, layer, source):
        """An array [batch, kv_heads, tokens, size] in huge pages."""
        cell = self.cell
        shape = (len(cell.kv_lens), cell.heads[1], cell.kv_lens[0], cell.heads[2])
        array = data.huge_array(shape, data.value_type(cell.dtype))
        for i in range(len(cell.kv_lens)):
            array[i] = source(cell, layer, i).transpose(1, 0, 2)
        self.memory.append(array)
        return array

    def call(self, i):
        self.session.run_with_iobinding(self.bindings[i])

    def output(self):
        return self.out.numpy().reshape(-1, self.cell.heads[0], self.cell.heads[2]).astype(np.float32)
