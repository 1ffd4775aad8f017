"""The llama arithmetic once more, plain and in float64, without a cache: what the tiny model is compared with."""

import numpy as np
import tiny_llama


def reference_logits(tensors, tokens, *, rope_dim=6, rope_base=1000.0):
    """Logits after every token, in float64, with RoPE as a product of complex numbers and one dense mask."""
    s = tiny_llama.SIZES
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    n = len(tokens)

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def norm(name, x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]

    def rope(x):
        frequency = rope_base ** (-2 * np.arange(rope_dim // 2) / rope_dim) / w.get("rope_freqs.weight", 1)
        turned = x[..., :rope_dim].copy().view(np.complex128) * np.exp(1j * np.arange(n)[:, None, None] * frequency)
        return np.concatenate([turned.view(np.float64), x[..., rope_dim:]], axis=-1)

    x = w["token_embd.weight"][tokens]
    hidden = np.triu(np.full((n, n), -np.inf), 1)
    for i in range(s["layers"]):
        h = norm(f"blk.{i}.attn_norm", x)
        q = rope(linear(f"blk.{i}.attn_q", h).reshape(n, s["heads"], -1))
        k = rope(linear(f"blk.{i}.attn_k", h).reshape(n, s["kv_heads"], -1))
        v = linear(f"blk.{i}.attn_v", h).reshape(n, s["kv_heads"], -1)
        k, v = (np.repeat(each, s["heads"] // s["kv_heads"], axis=1) for each in (k, v))
        q, k, v = (each.transpose(1, 0, 2) for each in (q, k, v))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(s["head_dim"]) + hidden  # [heads, queries, keys]
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        seen = weight / weight.sum(-1, keepdims=True) @ v
        x = x + linear(f"blk.{i}.attn_output", seen.transpose(1, 0, 2).reshape(n, -1))
        h = norm(f"blk.{i}.ffn_norm", x)
        gate = linear(f"blk.{i}.ffn_gate", h)
        x = x + linear(f"blk.{i}.ffn_down", gate / (1 + np.exp(-gate)) * linear(f"blk.{i}.ffn_up", h))
    return norm("output_norm", x) @ w.get("output.weight", w["token_embd.weight"]).T
