"""What K and V become when they are stored, from the definitions."""

import numpy as np
import numpy.typing as npt

__all__ = ["quantised", "rounded"]

Float32 = npt.NDArray[np.float32]
LARGEST = {"int8": 127, "float8_e4m3": 448}


def rounded(values: Float32, dtype: str) -> Float32:
    """Return values as they are read after having been stored: to nearest, ties to even.

    int8 and float8_e4m3 have a scale per row of the last axis, a head of a token.

    >>> rounded(np.float32([1 + 2**-8, 1 + 3 * 2**-8]), "bfloat16").tolist()
    [1.0, 1.015625]
    >>> rounded(np.float32([127, 0.5, -1.5]), "int8").tolist()
    [127.0, 0.0, -2.0]
    """
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "float8_e5m2":  # the upper byte of a float16, of which numbers beyond the largest become infinite
        return _nearest_e5m2(values)
    if dtype == "bfloat16":  # the upper half of a float32; finite values only
        bits = values.view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    if dtype in LARGEST:
        codes, scales = quantised(values, dtype)
        return codes * scales[..., None]
    return values


def quantised(values: Float32, dtype: str) -> tuple[Float32, Float32]:
    """Return what an 8-bit type stores, as float32 [..., width], and the scales, float32 [...].

    The scale is absmax / 127 (int8) or / 448 (float8_e4m3), and 1 where that is 0.
    """
    largest = np.float32(LARGEST[dtype])
    scales = np.abs(values).max(axis=-1, initial=0).astype(np.float32) / largest
    scales = np.where(scales == 0, np.float32(1), scales)
    ratios: Float32 = np.clip(values / scales[..., None], -largest, largest).astype(np.float32)
    return (np.rint(ratios) if dtype == "int8" else _nearest_e4m3(ratios)), scales


def _nearest_e5m2(values: Float32) -> Float32:
    """Round the mantissa to 2 bits, or to multiples of 2**-16 where the exponent is too small, ties to even."""
    _, exponent = np.frexp(values.astype(np.float64))
    step = np.ldexp(1.0, np.maximum(exponent - 3, -16))
    nearest = np.rint(values / step) * step
    return np.where(np.abs(nearest) > 57344, np.copysign(np.inf, values), nearest).astype(np.float32)


def _nearest_e4m3(values: Float32) -> Float32:
    """Look up the nearest number of 4 bits of exponent and 3 of mantissa; of two, the one with an even code."""
    subnormal = [mantissa * 2.0**-9 for mantissa in range(8)]
    normal = [(1 + mantissa / 8) * 2.0 ** (exponent - 7) for exponent in range(1, 16) for mantissa in range(8)]
    numbers = np.array([*subnormal, *normal][:-1])  # the last code is NaN
    magnitudes = np.abs(values).astype(np.float64)
    above = np.searchsorted(numbers, magnitudes)
    below = np.maximum(above - 1, 0)
    to_above, to_below = numbers[above] - magnitudes, magnitudes - numbers[below]
    code = np.where((to_above < to_below) | ((to_above == to_below) & (above % 2 == 0)), above, below)
    nearest: Float32 = np.copysign(numbers[code], values).astype(np.float32)
    return nearest
