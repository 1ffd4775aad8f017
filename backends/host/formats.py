"""float32, float16 and bfloat16 arrays, and the way between them.

NumPy has neither bfloat16 nor fp8. Inside the backends such values are uint16 arrays that hold the
upper half of a float32, and uint8 arrays that hold an e4m3 number; at their border they may also be
ml_dtypes arrays. All rounding is to nearest, ties to even, and overflow gives infinity without a
warning, on every backend. What is stored with scales is rounded in ``quantised``.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.exchange import as_floats

__all__ = ["as_bits", "is_bfloat16", "narrowed", "numbers", "put", "widened"]

Floats = npt.NDArray[Any]  # float32, float16, or uint16 for bfloat16


def _e4m3_values() -> npt.NDArray[np.float32]:
    """What each byte means as fp8 e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity."""
    exponent, mantissa = np.divmod(np.arange(128), 8)
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    positive = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    positive[127] = np.nan
    return np.concatenate([positive, -positive]).astype(np.float32)


E4M3 = _e4m3_values()


def as_bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """View arrays of ml_dtypes, bfloat16 and fp8, as the unsigned integers of their bits."""
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether this is ml_dtypes' bfloat16 (known by name, so that ml_dtypes is not needed)."""
    return dtype.kind == "V" and dtype.name == "bfloat16"


def numbers(name: str, values: Any, storage_dtype: str) -> Floats:
    """Return an argument, an array of any library, as float32, float16 or (bfloat16) uint16 in native byte order.

    Any strides, alignment and byte order are taken, and no copy is made for them here. uint16
    means bfloat16, and only in a cache that stores bfloat16.
    """
    array = as_floats(values, name, storage_dtype)
    if is_bfloat16(array.dtype):
        return array.view(np.uint16)
    if array.dtype in (np.float32, np.float16) or (array.dtype == np.uint16 and storage_dtype == "bfloat16"):
        return array
    if array.dtype.kind == "f" and array.dtype.itemsize in (2, 4):  # the other byte order
        return array.astype(array.dtype.newbyteorder("="))
    bits = ", or uint16 that holds bfloat16" if storage_dtype == "bfloat16" else ""
    raise TypeError(f"{name} is {array.dtype}; it must be float32, float16 or bfloat16 of ml_dtypes{bits}")


def widened(values: Floats, out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """Return stored values as float32, exactly; float32 itself without a copy unless `out` is given."""
    if out is None:
        if values.dtype == np.float32:
            return values
        out = np.empty(values.shape, np.float32)
    if values.dtype == np.uint16:
        np.left_shift(values, np.uint32(16), out=out.view(np.uint32))
    elif values.dtype == np.float16:
        # In integers, since NumPy converts one float16 at a time, which is slow: sign, 5 bits of
        # exponent and 10 of mantissa are moved into place (the shift has copied the sign), and the
        # difference of the exponents' biases is multiplied in, exactly, subnormals included.
        bits = np.left_shift(values.view(np.int16), np.int32(13), out=out.view(np.int32))
        bits &= np.int32(-0x70002000)
        out *= np.float32(2.0**112)
        special = np.abs(out) >= 65536  # exponent 31: infinities and NaN
        if special.any():
            out[special] = values[special]
    elif values.dtype == np.uint8:
        E4M3.take(values, out=out, mode="clip")
    else:
        out[...] = values
    return out


def narrowed(values: Floats, dtype: np.dtype[Any]) -> Floats:
    """Return the values rounded to `dtype`, which is float32, float16 or uint16 for bfloat16."""
    if values.dtype == dtype:
        return values
    if dtype != np.uint16:
        with np.errstate(over="ignore"):
            return widened(values).astype(dtype)
    bits = np.ascontiguousarray(widened(values)).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)  # rounding could turn one into infinity
    return np.where(nan, (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


def put(out: npt.NDArray[Any], values: npt.NDArray[np.float32]) -> None:
    """Write float32 values into an array of the caller's, rounded to its dtype."""
    if is_bfloat16(out.dtype):
        out.view(np.uint16)[...] = narrowed(values, np.dtype(np.uint16))
    else:
        with np.errstate(over="ignore"):
            out[...] = values
