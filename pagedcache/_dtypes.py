"""What K and V may be stored as."""

from typing import Any

import numpy as np

from pagedcache.exchange import numpy_dtype

__all__ = ["ITEM_BYTES", "SCALED_DTYPES", "storage_dtype"]

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "float8_e4m3": 1, "float8_e5m2": 1}
SCALED_DTYPES = frozenset({"int8", "float8_e4m3"})  # stored with one float32 per (token, head)


def storage_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of arrays that store `name`.

    NumPy has no bfloat16 and no fp8: they are ml_dtypes' where that is installed, and otherwise
    the unsigned integers that hold their bits. float8_e5m2 always is uint8: NumPy takes the one of
    ml_dtypes for a kind of float that it knows.
    """
    if name == "float8_e5m2":
        return np.dtype(np.uint8)
    return numpy_dtype("float8_e4m3fn" if name == "float8_e4m3" else name)
