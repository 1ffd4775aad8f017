"""The gemma3 arithmetic once more, plain and in float64, without a cache: what the tiny model is compared with."""

import math

import numpy as np
import tiny_gemma


def reference_logits(tensors, tokens, *, window=tiny_gemma.SIZES["window"], sliding=None):
    """Logits after every token, in float64, with RoPE as a product of complex numbers and one dense mask per layer."""
    s = tiny_gemma.SIZES
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    sliding = [(i + 1) % s["period"] != 0 for i in range(s["layers"])] if sliding is None else sliding
    n, half = len(tokens), s["head_dim"] // 2

    def linear(name, x):
        return x @ w[f"{name}.weight"].T

    def norm(name, x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + tiny_gemma.EPS) * w[f"{name}.weight"]

    def rope(x, base):
        turn = np.exp(1j * np.arange(n)[:, None, None] * base ** (-np.arange(half) / half))
        turned = (x[..., :half] + 1j * x[..., half:]) * turn  # a head's halves are the parts of complex numbers
        return np.concatenate([turned.real, turned.imag], axis=-1)

    x = w["token_embd.weight"][tokens] * math.sqrt(s["width"])
    behind = np.arange(n)[:, None] - np.arange(n)  # [query, key]
    for i in range(s["layers"]):
        seen_by = (behind >= 0) & (behind < (window if sliding[i] else n))
        base = tiny_gemma.LOCAL_ROPE_BASE if sliding[i] else tiny_gemma.ROPE_BASE
        h = norm(f"blk.{i}.attn_norm", x)
        q, k, v = (linear(f"blk.{i}.attn_{part}", h).reshape(n, -1, s["head_dim"]) for part in "qkv")
        q, k = rope(norm(f"blk.{i}.attn_q_norm", q), base), rope(norm(f"blk.{i}.attn_k_norm", k), base)
        k, v = (np.repeat(each, s["heads"] // s["kv_heads"], axis=1) for each in (k, v))
        q, k, v = (each.transpose(1, 0, 2) for each in (q, k, v))
        scores = np.where(seen_by, q @ k.transpose(0, 2, 1) / math.sqrt(s["head_dim"]), -np.inf)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (weight / weight.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, -1)
        x = x + norm(f"blk.{i}.post_attention_norm", linear(f"blk.{i}.attn_output", seen))
        h = norm(f"blk.{i}.ffn_norm", x)
        gate = linear(f"blk.{i}.ffn_gate", h)
        gate = gate / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        x = x + norm(f"blk.{i}.post_ffw_norm", linear(f"blk.{i}.ffn_down", gate * linear(f"blk.{i}.ffn_up", h)))
    return norm("output_norm", x) @ w.get("output.weight", w["token_embd.weight"]).T
