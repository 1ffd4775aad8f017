"""Backend ``cuda-emulated``: the kernels of backend ``cuda``, executed on a CPU, for tests without a GPU."""

from pagedcache.backends.cuda_emulated._backend import CudaEmulatedBackend
from pagedcache.backends.cuda_emulated._emulator import EmulatorError

__all__ = ["CudaEmulatedBackend", "EmulatorError"]
