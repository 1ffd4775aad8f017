"""Memory for the arrays of a pool, used as it is touched."""

import contextlib
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["zeros"]

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
