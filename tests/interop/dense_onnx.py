"""The decoder of docs/examples/onnxruntime_decode.py in one graph, over dense K and V: GroupQueryAttention."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
MOST = 64  # tokens


def one_graph(example, weights):
    """A session: tokens, at, seqlens_k, total and past K and V of each layer to logits and the same K and V."""
    e, node = example, example.node
    nodes = [node("Gather", "embedding tokens", "e0"), node("Gather", "positions at", "p0"), node("Add", "e0 p0", "x0")]
    for i in range(e.LAYERS):
        attention = f"q_{i} k_{i} v_{i} past_k{i} past_v{i} seqlens_k total"
        nodes += [node("MatMul", f"x{i} {name}{i}", f"{name}_{i}") for name in "qkv"]
        nodes += [
            node("GroupQueryAttention", attention, f"a{i} present_k{i} present_v{i}", domain="com.microsoft",
                 num_heads=e.HEADS, kv_num_heads=e.KV_HEADS),
            node("MatMul", f"a{i} o{i}", f"b{i}"), node("Add", f"x{i} b{i}", f"y{i}"),
            node("MatMul", f"y{i} up{i}", f"c{i}"), node("Relu", f"c{i}", f"d{i}"),
            node("MatMul", f"d{i} down{i}", f"f{i}"), node("Add", f"y{i} f{i}", f"x{i + 1}"),
        ]  # fmt: skip
    nodes.append(node("MatMul", f"x{e.LAYERS} head", "logits"))
    cache = [1, e.KV_HEADS, MOST, e.HEAD_DIM]
    info = helper.make_tensor_value_info
    names = [f"{name}{i}" for i in range(e.LAYERS) for name in "kv"]
    inputs = [info("tokens", INT64, [1, "n"]), info("at", INT64, [1, "n"]), info("seqlens_k", INT32, [1])]
    inputs += [info("total", INT32, []), *(info(f"past_{name}", FLOAT, cache) for name in names)]
    outputs = [info("logits", FLOAT, [1, "n", e.VOCAB]), *(info(f"present_{name}", FLOAT, cache) for name in names)]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "dense", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]), names


def dense_logits(example, weights, tokens, prompt):
    """Logits of all tokens: of the prompt in one run, then token by token, past and present in one buffer."""
    session, names = one_graph(example, weights)
    caches = {name: np.zeros((1, example.KV_HEADS, MOST, example.HEAD_DIM), np.float32) for name in names}
    found, done = [], 0
    for part in [tokens[:prompt], *([token] for token in tokens[prompt:])]:
        end = done + len(part)
        given = {
            "tokens": np.array([part], np.int64),
            "at": np.arange(done, end)[None],
            "seqlens_k": np.array([end - 1], np.int32),
            "total": np.array(end, np.int32),
        }
        binding = session.io_binding()
        for name, array in given.items():
            binding.bind_cpu_input(name, array)
        for name, array in caches.items():
            where = ("cpu", 0, np.float32, array.shape, array.ctypes.data)
            binding.bind_input(f"past_{name}", *where)
            binding.bind_output(f"present_{name}", *where)
        binding.bind_output("logits")
        session.run_with_iobinding(binding)
        found.append(binding.copy_outputs_to_cpu()[-1][0])
        done = end
    return np.concatenate(found)
