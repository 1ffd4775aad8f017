"""The instruction cvt: between integers, floats, and the formats that NumPy lacks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault
from pagedcache.backends.cuda_emulated.ptx._memory import Array
from pagedcache.backends.cuda_emulated.ptx._parse import DTYPES

__all__ = ["bf16_bits", "bf16_numbers", "f16_bits", "resolve"]

Resolved = tuple[Callable[..., Array], tuple[np.dtype[Any], ...], np.dtype[Any]]

U16, U32, F32 = DTYPES["u16"], DTYPES["u32"], DTYPES["f32"]
TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
NARROW_NAN = np.uint16(0x7FFF)  # what a GPU makes of every NaN, in float16 and bfloat16


def resolve(words: list[str]) -> Resolved:
    """Return function, source types and result type of ``cvt`` followed by these words."""
    *modes, result, source = words
    modes = [mode for mode in modes if mode != "ftz"]  # what subnormal numbers become matters to no cvt of the kernels
    if result in ("f16x2", "bf16x2") and source == "f32" and modes == ["rn"]:
        narrow = f16_bits if result == "f16x2" else bf16_bits
        return lambda high, low: narrow(high).astype(np.uint32) << np.uint32(16) | narrow(low), (F32, F32), U32
    if (result, source) == ("bf16", "f32") and modes == ["rn"]:
        return bf16_bits, (F32,), U16
    if (result, source) == ("f16", "f32") and modes == ["rn"]:
        return f16_bits, (F32,), U16
    if (result, source) == ("f32", "bf16"):
        return bf16_numbers, (U16,), F32
    if result in DTYPES and source in DTYPES:
        return _plain(modes, DTYPES[result], DTYPES[source])
    raise PtxFault(f"cvt {' '.join(words)} is not known")


def _plain(modes: list[str], result: np.dtype[Any], source: np.dtype[Any]) -> Resolved:
    if source.kind == "f" and len(modes) == 1 and modes[0] in TO_INTEGER:
        to_integer = TO_INTEGER[modes[0]]
        if result.kind == "f":
            return lambda x: to_integer(x).astype(result), (source,), result
        return lambda x: _saturated(to_integer(x), result), (source,), result
    widening = source.kind != "f" or result.itemsize >= source.itemsize
    if modes in ([], ["rn"]) and not (source.kind == "f" and result.kind != "f") and widening:
        return lambda x: x.astype(result), (source,), result
    raise PtxFault(f"cvt {' '.join(modes)} from {source} to {result} is not known")


def _saturated(x: Array, result: np.dtype[Any]) -> Array:
    """Return integers of whole floats: NaN is 0, what is too large the nearest there is."""
    limits = np.iinfo(result)
    inside = (x >= float(limits.min)) & (x < float(limits.max))  # the largest may round up as a float
    exact = np.where(inside, x, 0).astype(result)
    return np.where(inside | np.isnan(x), exact, np.where(x < 0, limits.min, limits.max)).astype(result)


def f16_bits(x: Array) -> Array:
    """Return float32 rounded to nearest even, as the bits of float16."""
    return np.where(np.isnan(x), NARROW_NAN, x.astype(np.float16).view(np.uint16))


def bf16_bits(x: Array) -> Array:
    """Return float32 rounded to nearest even, as the bits of bfloat16."""
    bits = x.view(np.uint32)
    even = bits >> np.uint32(16) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + even >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(x), NARROW_NAN, rounded)


def bf16_numbers(bits: Array) -> Array:
    """Return float32 of the bits of bfloat16."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
