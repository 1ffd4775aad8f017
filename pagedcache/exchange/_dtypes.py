"""Types of numbers: their names, their codes in DLPack, and what they are in NumPy."""

import functools
from typing import Any

import numpy as np

__all__ = ["CODES", "FOREIGN", "NAMES", "as_bits", "numpy_dtype"]

CODES = {  # name -> type code and bits of DLPack
    "bool": (6, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
}
NAMES = {code: name for name, code in CODES.items()}
FOREIGN: dict[str, np.dtype[Any]] = {  # that NumPy has not, and integers of their size
    "bfloat16": np.dtype(np.uint16),
    "float8_e4m3fn": np.dtype(np.uint8),
    "float8_e5m2": np.dtype(np.uint8),
}


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of that name; of bfloat16 and fp8 ml_dtypes', or their bits where it is not installed."""
    if (bits := FOREIGN.get(name)) is None:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return bits
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def as_bits(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], str]:
    """Return an array of ml_dtypes as the unsigned integers of its bits, and its dtype's name; else itself, and ''."""
    dtype = array.dtype
    if dtype.isbuiltin != 2:  # 2: added to NumPy by another package
        return array, ""
    return array.view(f"u{dtype.itemsize}"), dtype.name
