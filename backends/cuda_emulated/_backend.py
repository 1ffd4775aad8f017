"""The backend whose GPU is emulated."""

from typing import TYPE_CHECKING

from pagedcache.backends.cuda._backend import KernelBackend
from pagedcache.backends.cuda._launcher import Launcher
from pagedcache.backends.cuda_emulated._emulator import Emulator
from pagedcache.backends.cuda_emulated._host import HostMemory
from pagedcache.backends.protocol import Backend, ChecksAttend, WritesAndAttends

__all__ = ["CudaEmulatedBackend", "EmulatedGpu"]


class EmulatedGpu(HostMemory, Emulator):
    """The launcher of the emulator: memory of the host, kernels compiled for its processor."""


class CudaEmulatedBackend(KernelBackend):
    """Backend ``cuda`` without a GPU: its kernels' own source, compiled by a C++ compiler, checked as it runs.

    Use it to test on a CPU what will run on a GPU; it is much slower. What the emulator checks besides:
    barriers and warp-wide operations that not all threads reach, copies that are used before they have arrived,
    addresses outside shared memory, misaligned ones.

    Parameters
    ----------
    order : {"forward", "reverse", "random"}
        In which order threads of a block run between barriers.
    seed : int
        Of the random order.

    Raises
    ------
    UnsupportedByBackend
        When a kernel first runs, where there is no C++ compiler.

    Examples
    --------
    >>> CudaEmulatedBackend().device
    'cpu'
    """

    name = "cuda-emulated"

    def __init__(self, order: str = "forward", seed: int = 1) -> None:
        super().__init__(EmulatedGpu(order=order, seed=seed))


if TYPE_CHECKING:
    _conforms: Backend = CudaEmulatedBackend()
    _checks: ChecksAttend = CudaEmulatedBackend()
    _writes: WritesAndAttends = CudaEmulatedBackend()
    _launches: Launcher = EmulatedGpu()
