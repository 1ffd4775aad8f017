"""Memory for the arrays of a pool, used as it is touched, and for what is computed on the way."""

import contextlib
import math
import mmap
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Scratch", "zeros"]

HUGE_PAGE = 2 << 20  # bytes; smaller arrays would gain nothing from huge pages


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a compact array of zeros in an anonymous mapping of its own.

    A mapping starts at a page, so that the array is aligned to 64 bytes and more, and the system
    gives it memory only where it is written. It is private: after ``fork()`` the child has its own
    copy. The array keeps the mapping alive, and the mapping ends with the last array over it.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        memory = mmap.mmap(-1, nbytes, **flags)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for an array of {nbytes} bytes: {error}; ask for fewer blocks") from error
    if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages; only speed is lost
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)


class Scratch(threading.local):
    """Arrays that a thread fills again and again, one per name, kept at the largest size asked for.

    The C library takes fresh memory for every array of more than 128 KiB and gives it back at the
    end: most of the time of a decode step would go into page faults.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, type], npt.NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: type[np.generic]) -> npt.NDArray[Any]:
        """Return an array with anything in it, valid until the thread asks for this name again."""
        size = max(1, math.prod(shape))
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.size < size:
            # Page-aligned like the pool: NumPy's own arrays begin 16 bytes behind a page, and copying
            # rows of 4 KiB from a page to 16 bytes behind another is much slower.
            buffer = self._buffers[name, dtype] = zeros((size,), np.dtype(dtype))
        return buffer[: math.prod(shape)].reshape(shape)
