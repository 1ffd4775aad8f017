"""Host memory for blocks that are swapped out, used again and again: fresh pages cost as much as the copy."""

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

__all__ = ["SwapRoom"]

Bytes = NDArray[np.uint8]

CHUNK_BYTES = 128 << 20  # what is taken at a time: copies of it are worth a second thread. Only what is written counts
SPARE_BYTES = 256 << 20  # that are kept for the next swap


class SwapRoom:
    """Chunks of records.

    Parameters
    ----------
    layers, record_nbytes : int
        A block has so many records of so many bytes.
    """

    def __init__(self, layers: int, record_nbytes: int) -> None:
        self._shape = layers, record_nbytes
        self._blocks = max(1, CHUNK_BYTES // (layers * record_nbytes))  # to a chunk
        self._spare: list[Bytes] = []

    def take(self, blocks: int) -> list[Bytes]:
        """Return room for so many blocks, in pieces uint8 [some, layers, record]."""
        sizes = [min(self._blocks, blocks - first) for first in range(0, blocks, self._blocks)]
        return [self._chunk()[:size] for size in sizes]

    def give_back(self, pieces: list[Bytes]) -> None:
        """The records are no longer wanted."""
        most = SPARE_BYTES // (self._blocks * self._shape[0] * self._shape[1])
        for piece in pieces[: max(0, most - len(self._spare))]:
            memory = piece.base  # all of the chunk
            assert memory is not None
            self._spare.append(memory.reshape(self._blocks, *self._shape))

    def clear(self) -> None:
        """Keep nothing."""
        self._spare.clear()

    def _chunk(self) -> Bytes:
        if self._spare:
            return self._spare.pop()
        memory = mmap.mmap(-1, self._blocks * self._shape[0] * self._shape[1])
        with suppress(AttributeError, OSError):  # where there are no huge pages, small ones do
            memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, np.uint8).reshape(self._blocks, *self._shape)
