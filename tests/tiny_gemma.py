"""A gemma3 model of random numbers: six layers, every third of which sees everything, the others a window of five."""

import numpy as np
import tiny_llama

SIZES = {
    "vocab": 280,
    "context": 256,
    "layers": 6,
    "width": 24,
    "ffn_width": 40,
    "heads": 4,
    "kv_heads": 1,
    "head_dim": 8,
    "window": 5,
    "period": 3,
}
EPS, ROPE_BASE, LOCAL_ROPE_BASE = 1e-5, 5000.0, 100.0


def weights(seed=0, *, tied=True):
    """float32 tensors by name, in NumPy's shapes."""
    random = np.random.default_rng(seed)
    s = SIZES

    def normal(*shape):
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def norm(size):
        return (1 + 0.3 * random.standard_normal(size)).astype(np.float32)

    tensors = {
        "token_embd.weight": (random.standard_normal((s["vocab"], s["width"])) / 4).astype(np.float32),
        "output_norm.weight": norm(s["width"]),
    }
    q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    matrices = {
        "attn_q": (q, s["width"]),
        "attn_k": (kv, s["width"]),
        "attn_v": (kv, s["width"]),
        "attn_output": (s["width"], q),
        "ffn_gate": (s["ffn_width"], s["width"]),
        "ffn_up": (s["ffn_width"], s["width"]),
        "ffn_down": (s["width"], s["ffn_width"]),
    }
    for layer in range(s["layers"]):
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = norm(s["width"])
        for name in ("attn_q_norm", "attn_k_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = norm(s["head_dim"])
        for name, shape in matrices.items():
            tensors[f"blk.{layer}.{name}.weight"] = normal(*shape)
    if not tied:
        tensors["output.weight"] = normal(s["vocab"], s["width"])
    return tensors


def write(path, tensors=None, **metadata):
    """Write the model; `metadata` adds ``gemma3.*`` keys, dots written as two underscores, or replaces them."""
    s = SIZES
    values = {
        "context_length": s["context"],
        "block_count": s["layers"],
        "embedding_length": s["width"],
        "feed_forward_length": s["ffn_width"],
        "attention.head_count": s["heads"],
        "attention.head_count_kv": s["kv_heads"],
        "attention.key_length": s["head_dim"],
        "attention.value_length": s["head_dim"],
        "attention.sliding_window": s["window"],
        "attention.sliding_window_pattern": s["period"],
        "rope.freq_base": ROPE_BASE,
        "rope.freq_base_swa": LOCAL_ROPE_BASE,
        "attention.layer_norm_rms_epsilon": EPS,
    }
    values |= {name.replace("__", "."): value for name, value in metadata.items()}
    named = {f"gemma3.{name}": value for name, value in values.items() if value is not None}
    return tiny_llama.write_gguf(path, "gemma3", named, weights() if tensors is None else tensors)
