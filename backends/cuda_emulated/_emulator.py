"""The running of kernels on a CPU: each thread of a block is a fiber, and checks are made at every step.

See ``emulator/`` for how. What is checked: warp-wide operations and barriers that not all threads reach at the same
place, copies and matrix loads that are misaligned or outside shared memory, copies that nobody waits for. Shared memory
is full of NaN before each block, and so is the destination of a copy until its thread has waited for it.
"""

import ctypes
import os
import threading
from typing import Any

import numpy as np

from pagedcache.backends.cuda._kernels import Kernel
from pagedcache.backends.cuda_emulated._compiler import SANITIZERS, library, runtime

__all__ = ["Emulator", "EmulatorError"]

ORDERS = ("forward", "reverse", "random")  # enum Order of emulator/block.h
MESSAGE_BYTES = 2048
LOADING = threading.Lock()  # two threads do not compile the same
# What runs grids, by the name of its library: a process has one of each, since kernels find it by that name.
RUNTIMES: dict[str, Any] = {}


class EmulatorError(RuntimeError):
    """A check of the emulator failed; the message names the source line, the block, the thread, its warp and lane."""


class Emulator:
    """Runs kernels.

    Parameters
    ----------
    order : {"forward", "reverse", "random"}
        Which of the threads that can go on does so: the first, the last, or any. Blocks are begun in the same order.
    seed : int
        Of the random order, which is the same each time for the same seed.
    late : bool
        Copies arrive when they are waited for; else as soon as they are begun.
    workers : int, optional
        Threads of the host that run blocks side by side; as many as there are processors. One under thread sanitizer,
        which is to see the block's threads only.
    sanitize : {"", "address,undefined", "thread"}
        Sanitizers that kernels are compiled with; see `pagedcache.backends.cuda_emulated._compiler.library`.
    extra : str
        C++ for kernels that are not among those of backend ``cuda``, as they are written in tests.
    """

    def __init__(
        self,
        order: str = "forward",
        seed: int = 1,
        *,
        late: bool = True,
        workers: int | None = None,
        sanitize: str = "",
        extra: str = "",
    ) -> None:
        if order not in ORDERS:
            raise ValueError(f"order={order!r} is not one of {', '.join(ORDERS)}")
        if sanitize not in SANITIZERS:
            raise ValueError(f"sanitize={sanitize!r} is not one of {', '.join(map(repr, SANITIZERS))}")
        self._order = ORDERS.index(order)
        self._seed = seed
        self._late = late
        self._workers = 1 if sanitize == "thread" else workers or len(os.sched_getaffinity(0))
        self._sanitize = sanitize
        self._extra = extra
        self._run: Any = None
        self._entries: dict[Kernel, tuple[int, int]] = {}

    def launch(self, kernel: Kernel, grid: int, params: "np.ndarray[Any, np.dtype[np.void]] | np.void | bytes") -> None:
        """Run `grid` blocks of a kernel, and return when they are done; other Python threads go on meanwhile.

        Parameters
        ----------
        kernel : Kernel
            Compiled when it is first launched.
        grid : int
            Blocks.
        params : numpy struct without axes, or bytes
            The kernel's struct, laid out as in ``kernels/params.cuh``.

        Raises
        ------
        EmulatorError
            A check failed: the first one that did.
        UnsupportedByBackend
            There is no C++ compiler.
        """
        if kernel.threads % 32 or not 32 <= kernel.threads <= 1024:
            raise ValueError(f"{kernel.name}: threads={kernel.threads} is not a multiple of 32 up to 1024")
        enter, expected = self._entry(kernel)
        struct = params if isinstance(params, bytes) else params.tobytes()
        if len(struct) != expected:
            raise ValueError(f"{kernel.name}: params has {len(struct)} bytes, {kernel.params} {expected}")
        memory = ctypes.create_string_buffer(struct, len(struct))
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        launch = _Launch(
            enter,
            ctypes.addressof(memory),
            self._seed,
            grid,
            kernel.threads,
            kernel.shared,
            self._order,
            self._late,
            self._workers,
        )
        if self._run(ctypes.byref(launch), message, MESSAGE_BYTES):
            raise EmulatorError(f"{kernel.name}: {message.value.decode()}")

    def _entry(self, kernel: Kernel) -> tuple[int, int]:
        """Return the address of a kernel's entry, and the size of its struct in bytes."""
        with LOADING:
            return self._loaded(kernel)

    def _loaded(self, kernel: Kernel) -> tuple[int, int]:
        if self._run is None:
            path = runtime(self._sanitize)
            if path.name not in RUNTIMES:
                RUNTIMES[path.name] = ctypes.CDLL(str(path)).emulator_run
            self._run = RUNTIMES[path.name]
        if kernel not in self._entries:
            loaded = ctypes.CDLL(str(library(kernel, self._sanitize, self._extra)))
            enter = ctypes.cast(loaded.emulator_enter, ctypes.c_void_p).value or 0
            self._entries[kernel] = enter, loaded.emulator_params_bytes()
        return self._entries[kernel]


class _Launch(ctypes.Structure):
    """Struct Launch of emulator/block.h."""

    _fields_ = (
        ("enter", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("seed", ctypes.c_uint64),
        ("grid", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("shared", ctypes.c_int),
        ("order", ctypes.c_int),
        ("late", ctypes.c_int),
        ("workers", ctypes.c_int),
    )
