"""The arrays of a pool in a GPU's memory: allocated here, or the caller's."""

from typing import Any

import numpy as np

from pagedcache.backends.cuda._explain import cupy
from pagedcache.backends.cuda._foreign import as_cupy, is_on_gpu
from pagedcache.backends.host.storage import HostStorage

__all__ = ["DeviceStorage"]


class DeviceStorage(HostStorage):
    """Like HostStorage, of CuPy arrays; bfloat16 and fp8 are unsigned integers there."""

    def _new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return cupy().zeros(shape, _bits(dtype))  # CuPy's OutOfMemoryError is a MemoryError

    def _fitting(self, name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        if not is_on_gpu(array):
            raise TypeError(f"{name} is {type(array).__name__}; it must be an array on the GPU")
        given = as_cupy(array)
        if given.dtype != _bits(dtype):
            raise ValueError(f"{name} has dtype {given.dtype}; the spec stores {dtype}, here {_bits(dtype)}")
        if given.shape != shape:
            raise ValueError(f"{name} has shape {given.shape}; it must be {shape}, the reserved block included")
        if not given.flags.c_contiguous:
            raise ValueError(f"{name} must be C-contiguous")
        return given

    def _address(self, array: Any) -> int:
        return int(array.data.ptr)

    def _lent(self, array: Any, writable: bool) -> Any:
        """Return an array over the same memory, which keeps a loan alive; CuPy has none that are read-only."""
        loan = _Loan(array)
        self._loans.add(loan)  # type: ignore[arg-type]
        cuda = cupy().cuda
        # Not by way of the array interface, where CuPy waits for the stream and copies from a GPU that is not current.
        memory = cuda.UnownedMemory(array.data.ptr, array.nbytes, loan, array.device.id)
        return cupy().ndarray(array.shape, array.dtype, cuda.MemoryPointer(memory, 0))


class _Loan:
    """Memory given out: arrays over it keep it alive, and by that show that they are in use."""

    def __init__(self, array: Any) -> None:
        self.array = array


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else dtype
