"""What attend and merge are given, and what they give back."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.host.formats import is_bfloat16, numbers
from pagedcache.exchange import as_floats, as_numpy, numpy_dtype
from pagedcache.spec import CacheSpec

__all__ = ["dtype_of_out", "parts_of", "shape_of_q"]


def dtype_of_out(given: Any, array: npt.NDArray[Any]) -> np.dtype[Any]:
    """q's own dtype, or float32 where q came as the bits of a dtype that NumPy has not."""
    if array.dtype != np.uint16:
        return array.dtype
    dtype = given.dtype if isinstance(given, np.ndarray) else numpy_dtype("bfloat16")  # other libraries have it
    return dtype if is_bfloat16(dtype) else np.dtype(np.float32)


def shape_of_q(q: npt.NDArray[Any], spec: CacheSpec) -> tuple[int, int, int]:
    """Return tokens, query heads and head size; ValueError where they do not fit the spec."""
    if q.ndim != 3 or q.shape[2] != spec.head_dim:
        raise ValueError(f"q has shape {q.shape}; it must be [tokens, q_heads, {spec.head_dim}]")
    if q.shape[1] == 0 or q.shape[1] % spec.kv_heads:
        raise ValueError(f"q has {q.shape[1]} heads; it must be a multiple of the cache's kv_heads={spec.kv_heads}")
    return q.shape


def parts_of(outs: Any, lses: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Return what merge is given as arrays: outs as they came, the same as numbers, and the lses."""
    parts = as_floats(outs, "outs", "bfloat16")
    values = numbers("outs", parts, "bfloat16")
    logs = as_numpy(lses, "lses")
    if logs.dtype != np.float32 or logs.ndim != 3 or not len(logs) or values.shape[:-1] != logs.shape:
        raise ValueError(
            f"outs is {parts.dtype} {parts.shape} and lses {logs.dtype} {logs.shape}; they must be "
            "[parts, tokens, q_heads, v_head_dim] and float32 [parts, tokens, q_heads], with at least one part"
        )
    return parts, values, logs
