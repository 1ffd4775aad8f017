"""Where a token's head lies in the arrays of a layer, as the kernels' structs say it."""

from typing import Any

import numpy as np

from pagedcache.spec import CacheSpec

__all__ = ["division", "put_geometry"]


def put_geometry(params: "np.ndarray[Any, np.dtype[np.void]]", spec: CacheSpec) -> None:
    """Write into a struct of attend or store: strides of K, V and scales in elements, and the sizes of a pool."""
    for letter, width in (("k", spec.head_dim), ("v", spec.v_head_dim), ("s", 1)):
        for name, stride in zip(("block", "slot", "head"), _strides(spec, width), strict=True):
            params[f"{letter}_{name}"] = stride
    for name in ("kv_heads", "head_dim", "v_head_dim", "block_size"):
        params[name] = getattr(spec, name)


def _strides(spec: CacheSpec, width: int) -> tuple[int, int, int]:
    """Return how many elements apart blocks, slots of a block and heads are, for heads of `width`."""
    heads, size = spec.kv_heads, spec.block_size
    if spec.layout == "NHD":
        return size * heads * width, heads * width, width
    return size * heads * width, width, size * width


def division(divisor: int) -> tuple[int, int]:
    """Return magic and shift with ``n // divisor == (2 * n * magic >> 32) >> shift`` for all 0 <= n < 2**31.

    Rounding up a reciprocal with 31 more bits than the divisor: Granlund and Montgomery, Division by invariant
    integers using multiplication, 1994.

    >>> magic, shift = division(7)
    >>> all((2 * n * magic >> 32) >> shift == n // 7 for n in (0, 6, 7, 48, 2**31 - 1))
    True
    """
    shift = (divisor - 1).bit_length()
    return -(-(1 << 31 + shift) // divisor), shift
