"""int8 and fp8 e4m3 with a float32 scale per token and head.

The scale is absmax / 127 (448 for e4m3), or 1 where that is 0, and what is stored is x / scale,
rounded to nearest, ties to even, and kept within the range. Everything is computed in float32, so
that every backend that does the same stores the same bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["quantised"]

Float32 = npt.NDArray[np.float32]

LARGEST = {"int8": np.float32(127), "float8_e4m3": np.float32(448)}


def quantised(name: str, values: Float32, dtype: str) -> tuple[npt.NDArray[Any], Float32]:
    """Return int8 (or uint8 e4m3) [tokens, heads, width] and float32 scales [tokens, heads].

    Raises
    ------
    ValueError
        A value is not finite: no scale could stand for it.
    """
    if not np.isfinite(values).all():
        token, head, _ = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(f"{name} holds nan or inf in token {token}, head {head}; storage in {dtype} must be finite")
    scales = np.abs(values).max(axis=-1, initial=np.float32(0)) / LARGEST[dtype]
    scales[scales == 0] = 1
    ratios = (values / scales[..., None]).clip(-LARGEST[dtype], LARGEST[dtype])
    return np.rint(ratios).astype(np.int8) if dtype == "int8" else _e4m3(ratios), scales


def _e4m3(values: Float32) -> npt.NDArray[np.uint8]:
    """Round numbers of at most 448 to e4m3."""
    magnitudes = np.abs(values)
    bits = magnitudes.view(np.uint32)
    # Keep 3 of the 23 bits of the mantissa; a carry goes into the exponent, whose bias is 7 instead of 127.
    normal = ((bits + (np.uint32(0x7FFFF) + ((bits >> 20) & np.uint32(1)))) >> 20) - np.uint32((127 - 7) << 3)
    subnormal = np.rint(magnitudes * np.float32(2**9)).astype(np.uint32)  # steps of 2**-9 below 2**-6
    sign = np.signbit(values).astype(np.uint32) << 7
    codes: npt.NDArray[np.uint32] = np.where(magnitudes < 2**-6, subnormal, normal) | sign
    return codes.astype(np.uint8)
