"""Attention of one sequence as the textbook has it: dense, in float64, head by head."""

import numpy as np
import numpy.typing as npt

from pagedcache.testing._rounding import rounded

__all__ = ["reference_attention", "rounded", "visible"]

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.floating]


def reference_attention(
    q: Numbers,
    k: Numbers,
    v: Numbers,
    *,
    scale: float | None = None,
    start: int = 0,
    pad: int = 0,
    window: int | None = None,
    sink_tokens: int = 0,
    sink_logits: Numbers | None = None,
    softcap: float | None = None,
    alibi_slopes: Numbers | None = None,
    tree: Bools | None = None,
    positions: Int64 | None = None,
) -> tuple[Float64, Float64]:
    """Return what the last queries of a sequence see of its keys.

    Parameters
    ----------
    q : float [q_len, q_heads, head_dim]
        The last stands at the last key, and each sees the keys up to its own place.
    k, v : float [kv_len, kv_heads, head_dim] and [kv_len, kv_heads, v_head_dim]
    scale : float, optional
        ``head_dim ** -0.5`` if not given.
    start, pad, window, sink_tokens, tree, positions
        See `visible`.
    sink_logits, alibi_slopes : float [q_heads], optional
        Scores of a key without a value; what a score gains per position from query to key.
    softcap : float, optional
        Scores become ``softcap * tanh(score / softcap)`` before slopes and mask.

    Returns
    -------
    out : float64 [q_len, q_heads, v_head_dim]
    lse : float64 [q_len, q_heads]
        Natural logarithm of the softmax's denominator, which sink logits are part of; where nothing
        is seen, out is 0 and lse is -inf, or the sink logit.

    Examples
    --------
    >>> one_hot = np.eye(5)[:, None]  # key i carries the i-th unit vector
    >>> out, _ = reference_attention(np.zeros((2, 1, 5)), one_hot, one_hot)
    >>> (out[:, 0] > 0).sum(axis=1).tolist()
    [4, 5]
    """
    q_len, q_heads, head_dim = q.shape
    kv_len, kv_heads, _ = k.shape
    seen = visible(
        q_len, kv_len, start=start, pad=pad, window=window, sink_tokens=sink_tokens, tree=tree, positions=positions
    )
    of_queries, of_keys = _positions(q_len, kv_len, pad, positions)
    distance = of_keys - of_queries[:, None]
    out = np.zeros((q_len, q_heads, v.shape[2]))
    lse = np.full((q_len, q_heads), -np.inf)
    for head in range(q_heads):
        kv_head = head * kv_heads // q_heads
        keys, values = k[:, kv_head].astype(np.float64), v[:, kv_head].astype(np.float64)
        scores = q[:, head].astype(np.float64) @ keys.T * (head_dim**-0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if alibi_slopes is not None:
            scores = scores + float(alibi_slopes[head]) * distance
        scores = np.where(seen, scores, -np.inf)
        sink = -np.inf if sink_logits is None else float(sink_logits[head])
        top = scores.max(axis=1, initial=sink, keepdims=True)
        some = top[:, 0] > -np.inf  # queries with anything in their denominator
        weights = np.exp(scores[some] - top[some])
        total = weights.sum(axis=1, keepdims=True) + np.exp(sink - top[some])
        out[some, head] = weights @ values / total
        lse[some, head] = (top[some] + np.log(total))[:, 0]
    return out, lse


def visible(
    q_len: int,
    kv_len: int,
    *,
    start: int = 0,
    pad: int = 0,
    window: int | None = None,
    sink_tokens: int = 0,
    tree: Bools | None = None,
    positions: Int64 | None = None,
) -> Bools:
    """Return which keys each of the last queries sees, bool [q_len, kv_len].

    Parameters
    ----------
    start, pad : int
        First key that is held beside the sinks; keys before the pad are never seen.
    window, sink_tokens : int
        Tokens that a query sees, its own included; leading positions that it sees beside these.
    tree : bool [q_len, q_len], optional
        Which of the new tokens each query sees; without it, those up to its own place.
    positions : int64 [q_len], optional
        Of the new tokens; their places less the pad if not given.

    Examples
    --------
    >>> visible(2, 7, window=2, sink_tokens=1).astype(int).tolist()
    [[1, 0, 0, 0, 1, 1, 0], [1, 0, 0, 0, 0, 1, 1]]
    """
    old = kv_len - q_len
    key, place = np.arange(kv_len), np.arange(old, kv_len)[:, None]
    of_queries, of_keys = _positions(q_len, kv_len, pad, positions)
    allowed = key <= place
    if tree is not None:
        allowed[:, max(old, 0) :] = tree[:, max(-old, 0) :]
    is_sink = of_keys < sink_tokens
    is_near = key >= start
    if window is not None:
        is_near = is_near & (of_keys > of_queries[:, None] - window)
    return (key >= pad) & allowed & (is_sink | is_near)


def _positions(q_len: int, kv_len: int, pad: int, new: Int64 | None) -> tuple[Int64, Int64]:
    """Positions of the queries and of the keys; the first queries may stand before every key."""
    row = np.arange(min(0, kv_len - q_len), kv_len) - pad
    if new is not None and q_len:
        row[-q_len:] = new
    return row[len(row) - q_len :], row[len(row) - kv_len :]
