"""What changes attention beside q, K and V: the variants, checked."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.errors import UnsupportedByBackend
from pagedcache.exchange import as_floats

__all__ = ["Rule", "chosen_precision", "make_rule"]

Float32 = npt.NDArray[np.float32]
MOST = 1e28  # of factors and slopes: their products with positions, too, are finite in float32


@dataclass(frozen=True)
class Rule:
    """How the scores of all queries of a call are made."""

    scale: float
    window: int | None = None  # tokens that a query sees, its own included
    sink_tokens: int = 0  # leading positions that are seen beside the window
    sink_logits: Float32 | None = None  # [q_heads], join the softmax's denominator
    softcap: float | None = None
    alibi_slopes: Float32 | None = None  # [q_heads]


def make_rule(
    q_heads: int,
    head_dim: int,
    *,
    scale: Any = None,
    window: Any = None,
    sink_tokens: Any = 0,
    sink_logits: Any = None,
    softcap: Any = None,
    alibi_slopes: Any = None,
) -> Rule:
    """Return the arguments of an attend as a Rule, or raise what is wrong with them."""
    factor = head_dim**-0.5 if scale is None else float(scale)
    if not abs(factor) <= MOST:
        raise ValueError(f"scale is {factor}; it must be at most {MOST:g} and not less than {-MOST:g}")
    if softcap is not None and not (1 / MOST <= softcap <= MOST and abs(factor) / softcap <= MOST):
        raise ValueError(
            f"softcap is {softcap}; it must be {1 / MOST:g} to {MOST:g} and scale / softcap at most as much, "
            "or None for no cap"
        )
    return Rule(
        factor,
        None
        if window is None
        else _tokens("window", window, 1, " (it includes the query's own), or None for no window"),
        _tokens("sink_tokens", sink_tokens, 0, ""),
        None if sink_logits is None else _per_head("sink_logits", sink_logits, q_heads, " or -inf"),
        None if softcap is None else float(softcap),
        None if alibi_slopes is None else _per_head("alibi_slopes", alibi_slopes, q_heads),
    )


def chosen_precision(backend: str, asked: Any, offered: Sequence[str]) -> str:
    """Return the precision asked for; None: the first that the backend offers for this storage.

    >>> chosen_precision("numpy", None, ["exact"])
    'exact'
    """
    if asked is None:
        return offered[0]
    if asked not in ("exact", "native"):
        raise ValueError(f"precision is {asked!r}; it must be None, 'exact' or 'native'")
    if asked not in offered:
        raise UnsupportedByBackend(
            f"backend {backend!r} computes with precision={offered[0]!r} only, not precision={asked!r}"
        )
    return str(asked)


def _tokens(name: str, value: Any, least: int, hint: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be an integer")
    if number < least:
        raise ValueError(f"{name} is {number}; it must be at least {least}{hint}")
    return min(number, 2**62)  # so that nothing overflows; no sequence is as long


def _per_head(name: str, values: Any, q_heads: int, or_else: str = "") -> Float32:
    """Return one float32 of at most MOST per query head; " or -inf" allows that too."""
    array = as_floats(values, name)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name} is {array.dtype}; it must be of floats")
    if array.shape != (q_heads,):
        raise ValueError(f"{name} has shape {array.shape}; it must be ({q_heads},), one per query head")
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    wrong = ~(np.abs(single) <= MOST) & ~(bool(or_else) & np.isneginf(single))
    if wrong.any():
        raise ValueError(
            f"{name} holds {single[wrong][0]}; it must be at most {MOST:g} and not less than {-MOST:g}{or_else}"
        )
    return single
