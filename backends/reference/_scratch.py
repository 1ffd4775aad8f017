"""Memory for what is computed on the way."""

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.host.memory import zeros

__all__ = ["Scratch"]


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
