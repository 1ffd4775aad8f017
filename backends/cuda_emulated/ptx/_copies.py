"""Copies from global to shared memory that run beside the computation (cp.async).

They arrive as late as they may: when the thread that issued them waits for them. Until then a read of their places is a
fault.
"""

from dataclasses import dataclass

import numpy as np

from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault, among
from pagedcache.backends.cuda_emulated.ptx._memory import Array, Memory
from pagedcache.backends.cuda_emulated.ptx._parse import DTYPES
from pagedcache.backends.cuda_emulated.ptx._shared import Shared

__all__ = ["Copies"]


@dataclass
class _Issued:
    """Copies of one instruction that have not arrived."""

    lanes: Array
    groups: Array  # of each lane
    places: Array  # as Shared.expect returns them
    words: Array  # uint32 [lanes, words]

    def split(self, chosen: Array) -> tuple["_Issued", "_Issued"]:
        """Return those that were chosen, and the others."""
        parts = (self.lanes, self.groups, self.places, self.words)
        return _Issued(*(part[chosen] for part in parts)), _Issued(*(part[~chosen] for part in parts))


class Copies:
    """All copies of a number of threads that are on their way."""

    def __init__(self, threads: int, memory: Memory, shared: Shared) -> None:
        self._memory, self._shared = memory, shared
        self._groups = np.zeros(threads, np.int64)  # that each thread has closed
        self._coming: list[_Issued] = []

    def issue(self, lanes: Array, to: Array, source: Array, size: int, read: Array) -> None:
        """Start copies of `size` bytes, one a lane; `read` bytes of them (all or none) are read, the others zeros."""
        places = self._shared.expect(lanes, to, size)
        words = np.zeros((lanes.size, size // 4), np.uint32)
        full = read == size
        if (~full & (read != 0)).any():
            raise PtxFault("a copy of a part of its bytes is not known", int(np.argmax(~full & (read != 0))))
        with among(full):
            words[full] = np.stack(self._memory.load(source[full], DTYPES["u32"], size // 4), axis=1)
        self._coming.append(_Issued(lanes, self._groups[lanes], places, words))

    def commit(self, lanes: Array) -> None:
        """Close a group of each lane."""
        self._groups[lanes] += 1

    def wait(self, lanes: Array, pending: int) -> None:
        """Let all groups of the lanes arrive but the last `pending`."""
        until = np.full(self._groups.size, -1)
        until[lanes] = self._groups[lanes] - pending
        still = []
        for issued in self._coming:
            arriving, others = issued.split(issued.groups < until[issued.lanes])
            self._shared.arrive(arriving.lanes, arriving.places, arriving.words)
            if others.lanes.size:
                still.append(others)
        self._coming = still

    def outstanding(self, lanes: Array) -> bool:
        """Whether some copy of these lanes has not arrived."""
        return any(np.isin(issued.lanes, lanes).any() for issued in self._coming)
