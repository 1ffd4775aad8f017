"""Memory for the arrays of a pool: committed as it is touched, in huge pages where the system has them."""

import contextlib
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HUGE_PAGE", "zeros"]

HUGE_PAGE = 2 << 20  # bytes; smaller arrays would gain nothing from huge pages


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a compact array of zeros in an anonymous mapping of its own.

    The system commits memory where it is touched, so that a pool of any size is made at once. The
    mapping is private: after ``fork()`` the child has its own copy. The array keeps the mapping
    alive, and the mapping ends with the last array over it.

    Parameters
    ----------
    shape : tuple of int
        None of them 0.
    dtype : dtype

    Returns
    -------
    array
        It begins at a multiple of 2 MiB and huge pages are asked for, unless it is smaller than one;
        then it begins at a page (4 KiB or more).

    Raises
    ------
    MemoryError
        The system refuses to map that much.

    Examples
    --------
    >>> array = zeros((2, 2**20), np.dtype(np.float32))
    >>> array.ctypes.data % 2**21, array.any()
    (0, np.False_)
    """
    nbytes = math.prod(shape) * dtype.itemsize
    huge_pages = nbytes // HUGE_PAGE
    memory = _mapped(nbytes + HUGE_PAGE if huge_pages else nbytes)
    mapped = np.frombuffer(memory, np.uint8)
    begin = -mapped.ctypes.data % HUGE_PAGE if huge_pages else 0
    if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages; only speed is lost
            # Not for the rest behind the last whole one, or the pool would take more than its size.
            memory.madvise(mmap.MADV_HUGEPAGE, begin, huge_pages * HUGE_PAGE)
    return mapped[begin : begin + nbytes].view(dtype).reshape(shape)


def _mapped(nbytes: int) -> mmap.mmap:
    # Python's default is a shared mapping: a forked child would write into its parent's pool.
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        return mmap.mmap(-1, nbytes, **flags)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{nbytes} bytes cannot be mapped: {error}") from error
