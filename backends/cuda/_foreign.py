"""Arrays on the GPU, of whatever library, as CuPy's: the same memory, bfloat16 and fp8 as unsigned integers."""

import sys
from typing import Any

import numpy as np

from pagedcache.backends.cuda._explain import cupy

__all__ = ["as_bits", "as_cupy", "is_bfloat16", "is_on_gpu"]

ON_GPU = (2, 13)  # kDLCUDA and kDLCUDAManaged of DLPack


def is_on_gpu(values: Any) -> bool:
    """Whether it is an array in a GPU's memory."""
    if isinstance(values, cupy().ndarray):
        return True
    if _is_tensor(values):  # torch's array interface raises for tensors that require a gradient
        return bool(values.is_cuda)
    if hasattr(values, "__cuda_array_interface__"):
        return True
    place = getattr(values, "__dlpack_device__", None)
    return place is not None and place()[0] in ON_GPU


def is_bfloat16(values: Any) -> bool:
    """Whether an array says that its numbers are bfloat16: torch's, or one of ml_dtypes."""
    return str(getattr(values, "dtype", "")) in ("torch.bfloat16", "bfloat16")


def as_cupy(values: Any) -> Any:
    """View an array on the GPU, without a copy where it is on the current one.

    CuPy's current stream comes after what the array's library has put on its own; arrays of the array interface that
    name a stream are waited for.
    """
    if _is_tensor(values):
        # By way of DLPack, since torch's array interface names no stream. There, CuPy reads no bfloat16 before 14, and
        # no fp8.
        values, torch = values.detach(), sys.modules["torch"]
        if is_bfloat16(values):
            return cupy().from_dlpack(values.view(torch.int16)).view(np.uint16)
        is_fp8 = values.dtype.itemsize == 1 and values.dtype.is_floating_point
        return cupy().from_dlpack(values.view(torch.uint8) if is_fp8 else values)
    if isinstance(values, cupy().ndarray):
        return as_bits(values)
    if hasattr(values, "__cuda_array_interface__"):
        return as_bits(cupy().asarray(values))
    return as_bits(cupy().from_dlpack(values))


def as_bits(array: Any) -> Any:
    """View an array of ml_dtypes as unsigned integers."""
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def _is_tensor(values: Any) -> bool:
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    return torch is not None and isinstance(values, getattr(torch, "Tensor", ()))
