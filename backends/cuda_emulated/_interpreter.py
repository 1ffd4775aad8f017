"""A launcher that interprets the PTX that NVRTC makes of the kernels: what a GPU is given, run on NumPy."""

import weakref
from functools import cache

import numpy as np

from pagedcache.backends.cuda._kernels import Kernel, source
from pagedcache.backends.cuda_emulated import _nvrtc
from pagedcache.backends.cuda_emulated._host import Array, HostMemory
from pagedcache.backends.cuda_emulated.ptx import PtxProgram, Region

__all__ = ["PtxInterpreter"]

ARCHITECTURE = "compute_80"


class PtxInterpreter(HostMemory):
    """A Launcher; kernels touch no memory but that of arrays that were registered, or whose address was asked for."""

    def __init__(self) -> None:
        self._known: dict[Region, weakref.ref[Array]] = {}  # to the array that owns the memory

    def register(self, array: Array) -> None:
        """Let kernels read an array and, where it is writable, write it, as long as its memory is somebody's."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        self._known[Region.of(array)] = weakref.ref(owner)

    def address(self, array: Array) -> int:
        """Return where the first element of an array is, which kernels may touch from now on."""
        self.register(array)
        return super().address(array)

    def launch(self, kernel: Kernel, grid: int, params: np.void) -> None:
        """Run `grid` blocks of a kernel; returns when they are done.

        Raises
        ------
        PtxFault
            The kernel did something wrong.
        """
        program = _program(source(kernel), kernel.name)
        program.launch(grid, kernel.threads, kernel.shared, params.tobytes(), self._regions())

    def _regions(self) -> list[Region]:
        self._known = {region: owner for region, owner in self._known.items() if owner() is not None}
        return list(self._known)


@cache
def _program(text: str, name: str) -> PtxProgram:
    compiled = _nvrtc.compile(text, f"{name}.cu", ARCHITECTURE, ("-lineinfo",))
    assert compiled.ptx is not None
    return PtxProgram(compiled.ptx, name)
