"""Where a token's head lies in the arrays of a layer, as the kernels' structs say it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pagedcache.spec import CacheSpec

__all__ = ["Geometry", "division"]


@dataclass(frozen=True)
class Geometry:
    """Strides of K, V and scales for blocks, slots and heads, in elements; and sizes."""

    k: tuple[int, int, int]
    v: tuple[int, int, int]
    scales: tuple[int, int, int]
    sizes: dict[str, int]

    @classmethod
    def of(cls, spec: CacheSpec) -> "Geometry":
        """Return that of a pool of one K/V shape."""
        return cls(
            _strides(spec, spec.head_dim),
            _strides(spec, spec.v_head_dim),
            _strides(spec, 1),
            {"kv_heads": spec.kv_heads, "head_dim": spec.head_dim, "v_head_dim": spec.v_head_dim,
             "block_size": spec.block_size},
        )  # fmt: skip

    def fill(self, params: "np.ndarray[Any, np.dtype[np.void]]") -> None:
        """Write all of it into a struct of attend or store."""
        for letter, strides in (("k", self.k), ("v", self.v), ("s", self.scales)):
            for name, stride in zip(("block", "slot", "head"), strides, strict=True):
                params[f"{letter}_{name}"] = stride
        for name, size in self.sizes.items():
            params[name] = size


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
