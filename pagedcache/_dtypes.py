"""What K and V may be stored as."""

import functools
from typing import Any

import numpy as np

__all__ = ["ITEM_BYTES", "SCALED_DTYPES", "storage_dtype"]

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "float8_e4m3": 1, "float8_e5m2": 1}
SCALED_DTYPES = frozenset({"int8", "float8_e4m3"})  # stored with one float32 per (token, head)


@functools.cache
def storage_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of arrays that store `name`.

    NumPy has no bfloat16 and no fp8: they are ml_dtypes' where that is installed, and otherwise
    the unsigned integers that hold their bits. float8_e5m2 always is uint8: NumPy takes the one of
    ml_dtypes for a kind of float that it knows.
    """
    if name == "bfloat16":
        return _extension_dtype("bfloat16", np.dtype(np.uint16))
    if name == "float8_e4m3":
        return _extension_dtype("float8_e4m3fn", np.dtype(np.uint8))
    if name == "float8_e5m2":
        return np.dtype(np.uint8)
    return np.dtype(name)


def _extension_dtype(name: str, bits: np.dtype[Any]) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        return bits
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype
