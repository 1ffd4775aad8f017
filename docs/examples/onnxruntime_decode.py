"""
ONNX Runtime
============

Greedy decoding with ONNX Runtime and a paged cache: the model is cut at attention, all memory is bound once. ::

    pip install "pagedcache[onnxruntime]" onnx
    python onnxruntime_decode.py

A decoder of two layers with random weights. Both sequences begin with the same prompt, which is computed and stored
once.
"""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from pagedcache import CacheSpec, KVCache
from pagedcache.interop.onnxruntime import Stage

LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LONGEST = 2, 4, 2, 16, 64, 256
HIDDEN = HEADS * HEAD_DIM
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def random_weights(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"embedding": (VOCAB, HIDDEN), "positions": (LONGEST, HIDDEN), "head": (HIDDEN, VOCAB)}
    for layer in range(LAYERS):
        shapes |= {f"q{layer}": (HIDDEN, HIDDEN), f"o{layer}": (HIDDEN, HIDDEN)}
        shapes |= {f"{name}{layer}": (HIDDEN, KV_HEADS * HEAD_DIM) for name in "kv"}
        shapes |= {f"up{layer}": (HIDDEN, 4 * HIDDEN), f"down{layer}": (4 * HIDDEN, HIDDEN)}
    return {name: rng.normal(0, 0.25, shape).astype(np.float32) for name, shape in shapes.items()}


def node(kind, inputs, outputs, **options):
    return helper.make_node(kind, inputs.split(), outputs.split(), **options)


def before(layer, x):
    """q, k and v of a layer."""
    return [node("MatMul", f"{x} {name}{layer}", name) for name in "qkv"]


def behind(layer):
    """The rest of the layer, from attention's result on."""
    return [
        node("MatMul", f"attended o{layer}", "projected"),
        node("Add", "x projected", "y"),
        node("MatMul", f"y up{layer}", "raised"),
        node("Relu", "raised", "bent"),
        node("MatMul", f"bent down{layer}", "lowered"),
        node("Add", "y lowered", "x_out"),
    ]


def session(nodes, inputs, outputs, weights):
    widths = {"tokens": (), "at": (), "logits": (VOCAB,), "k": (KV_HEADS * HEAD_DIM,), "v": (KV_HEADS * HEAD_DIM,)}

    def value(name):
        kind = INT64 if name in ("tokens", "at") else FLOAT
        return helper.make_tensor_value_info(name, kind, ["rows", *widths.get(name, (HIDDEN,))])

    used = {name for each in nodes for name in each.input} & weights.keys()
    constants = [numpy_helper.from_array(weights[name], name) for name in sorted(used)]
    graph = helper.make_graph(nodes, "stage", [*map(value, inputs)], [*map(value, outputs)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def stages(weights, rows):
    """The sessions between two attentions, and the arrays that they read and write."""
    begin = [node("Gather", "embedding tokens", "e"), node("Gather", "positions at", "p"), node("Add", "e p", "x")]
    parts = [session([*begin, *before(0, "x")], ["tokens", "at"], ["x", *"qkv"], weights)]
    for layer in range(1, LAYERS):
        nodes = [*behind(layer - 1), *before(layer, "x_out")]
        parts.append(session(nodes, ["attended", "x"], ["x_out", *"qkv"], weights))
    last = [*behind(LAYERS - 1), node("MatMul", "x_out head", "logits")]
    parts.append(session(last, ["attended", "x"], ["logits"], weights))
    arrays = {name: np.zeros((rows, HIDDEN), np.float32) for name in ("x", "x_out", "q", "attended")}
    arrays |= {name: np.zeros((rows, KV_HEADS * HEAD_DIM), np.float32) for name in "kv"}
    arrays |= {"logits": np.zeros((rows, VOCAB), np.float32)}
    arrays |= {name: np.zeros(rows, np.int64) for name in ("tokens", "at")}
    bound = []
    for part in parts:
        names = [value.name for value in (*part.get_inputs(), *part.get_outputs())]
        bound.append(Stage(part, {name: arrays[name] for name in names}))
        if "x_out" in names:  # what one stage leaves in x_out, the next one reads as x
            arrays["x"], arrays["x_out"] = arrays["x_out"], arrays["x"]
    return bound, arrays


def forward(cache, step, tokens, bound, arrays):
    """Logits of every token of a step: session, attention, session, attention, session."""
    n = step.num_tokens
    arrays["tokens"][:n], arrays["at"][:n] = tokens, step.positions
    q, k, v, attended = (arrays[name][:n].reshape(n, -1, HEAD_DIM) for name in ("q", "k", "v", "attended"))
    for layer in range(LAYERS):
        bound[layer].run(n)
        cache.attend(layer, q, k, v, step, out=attended)
    bound[LAYERS].run(n)
    return arrays["logits"][:n]


def generate(weights, prompt, endings, new_tokens):
    """Go on from a prompt with several endings; the tokens of each."""
    bound, arrays = stages(weights, rows=64)
    spec = CacheSpec(layers=LAYERS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=4)
    texts = []
    with KVCache(spec, num_blocks=64) as cache:
        parent = cache.admit([prompt]).ids
        step = cache.extend(parent, len(prompt))
        forward(cache, step, prompt, bound, arrays)
        cache.commit(step, prompt)
        ids = np.concatenate([parent, cache.fork(parent, len(endings) - 1)[0]])
        tokens = np.array(endings)
        for _ in range(new_tokens):
            step = cache.extend(ids, 1)
            logits = forward(cache, step, tokens, bound, arrays)
            cache.commit(step, tokens)
            tokens = logits.argmax(1)
            texts.append(tokens)
        print(f"{cache.stats().used} blocks, {cache.stats().shared} of them shared")
    return np.stack(texts, 1).tolist()


if __name__ == "__main__":
    for text in generate(random_weights(), prompt=[3, 1, 4, 1, 5, 9, 2, 6, 5], endings=[3, 7], new_tokens=12):
        print(text)
