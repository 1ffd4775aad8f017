"""Attention of one sequence as the textbook has it: dense, in float64, head by head."""

import numpy as np
import numpy.typing as npt

__all__ = ["reference_attention", "rounded"]

Float64 = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.floating]


def reference_attention(
    q: Numbers, k: Numbers, v: Numbers, *, scale: float | None = None, start: int = 0
) -> tuple[Float64, Float64]:
    """Return what the last queries of a sequence see of its keys.

    Parameters
    ----------
    q : float [q_len, q_heads, head_dim]
        The last stands at the last key, and each sees the keys up to its own place.
    k, v : float [kv_len, kv_heads, head_dim] and [kv_len, kv_heads, v_head_dim]
    scale : float, optional
        ``head_dim ** -0.5`` if not given.
    start : int
        Keys before this one are never seen.

    Returns
    -------
    out : float64 [q_len, q_heads, v_head_dim]
    lse : float64 [q_len, q_heads]
        Natural logarithm; where nothing is seen, out is 0 and lse is -inf.

    Examples
    --------
    >>> one_hot = np.eye(5)[:, None]  # key i carries the i-th unit vector
    >>> out, _ = reference_attention(np.zeros((2, 1, 5)), one_hot, one_hot)
    >>> (out[:, 0] > 0).sum(axis=1).tolist()
    [4, 5]
    """
    q_len, q_heads, head_dim = q.shape
    kv_len, kv_heads, _ = k.shape
    scale = head_dim**-0.5 if scale is None else scale
    place = np.arange(q_len)[:, None] + kv_len - q_len
    key = np.arange(kv_len)
    seen = (key >= start) & (key <= place)
    out = np.zeros((q_len, q_heads, v.shape[2]))
    lse = np.full((q_len, q_heads), -np.inf)
    any_seen = seen.any(axis=1)
    for head in range(q_heads):
        kv_head = head * kv_heads // q_heads
        keys, values = k[:, kv_head].astype(np.float64), v[:, kv_head].astype(np.float64)
        scores = np.where(seen, q[:, head].astype(np.float64) @ keys.T * scale, -np.inf)[any_seen]
        if scores.size:
            top = scores.max(axis=1, keepdims=True)
            weights = np.exp(scores - top)
            total = weights.sum(axis=1, keepdims=True)
            out[any_seen, head] = weights @ values / total
            lse[any_seen, head] = (top + np.log(total))[:, 0]
    return out, lse


def rounded(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.float32]:
    """Return float32 values that a storage type holds exactly: to nearest, ties to even.

    >>> rounded(np.float32([1 + 2**-8, 1 + 3 * 2**-8]), "bfloat16").tolist()
    [1.0, 1.015625]
    """
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":  # the upper half of a float32; finite values only
        bits = values.view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return values
