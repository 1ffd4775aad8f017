"""A compiled kernel, and its launches."""

from collections.abc import Iterable

import numpy as np

from pagedcache.backends.cuda_emulated.ptx._machine import Code, Machine
from pagedcache.backends.cuda_emulated.ptx._memory import Memory, Region
from pagedcache.backends.cuda_emulated.ptx._parse import parse
from pagedcache.backends.cuda_emulated.ptx._shared import WARP
from pagedcache.backends.cuda_emulated.ptx._state import State

__all__ = ["PtxProgram"]

THREADS_AT_ONCE = 2048  # more make steps of a kernel slower than they make them fewer


class PtxProgram:
    """One entry of a PTX text.

    Parameters
    ----------
    ptx_text
        As NVRTC writes it for ``compute_80``; with ``-lineinfo``, faults name the file and line of the source.
    entry
        Name of a kernel in it.
    """

    def __init__(self, ptx_text: str, entry: str) -> None:
        self._code = Code(parse(ptx_text, entry))

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the entry's parameters."""
        return self._code.entry.parameter_bytes

    def launch(self, grid: int, threads: int, shared_bytes: int, params: bytes, regions: Iterable[Region]) -> None:
        """Run `grid` blocks.

        Parameters
        ----------
        grid, threads
            Blocks, and threads of each, a multiple of 32.
        shared_bytes
            Shared memory of a block that the launch asks for.
        params
            The entry's parameters, laid out as in C.
        regions
            All memory of the host that the kernel may touch.

        Raises
        ------
        PtxFault
            The kernel did something wrong; the message has the line, block and thread.
        """
        entry = self._code.entry
        if threads % WARP or len(params) != entry.parameter_bytes:
            raise ValueError(f"{threads} threads, {len(params)} of {entry.parameter_bytes} bytes of parameters")
        parameters = np.frombuffer(params, np.uint8)
        constants = {name: np.array(bytearray(variable.data)) for name, variable in entry.constants.items()}
        for name, array in constants.items():
            array.flags.writeable = entry.constants[name].writable
        memory = Memory([*regions, *map(Region.of, [parameters, *constants.values()])])
        at_once = max(THREADS_AT_ONCE // threads, 1)
        for first in range(0, grid, at_once):
            state = State(
                entry, first=first, blocks=min(at_once, grid - first), grid=grid, block_threads=threads,
                shared_bytes=shared_bytes, memory=memory, parameters=parameters.ctypes.data,
                constants={name: array.ctypes.data for name, array in constants.items()},
            )  # fmt: skip
            Machine(self._code, state).run()
