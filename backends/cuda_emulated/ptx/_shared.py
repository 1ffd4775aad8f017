"""Shared memory of blocks, and whether barriers keep the accesses of different threads apart.

All threads take the same steps here, so that a missing barrier changes no result. So it is noted of every 4 bytes
who wrote and who read them last, and how many barriers of its block and of its warp that thread had passed.
"""

from typing import Any

import numpy as np

from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault
from pagedcache.backends.cuda_emulated.ptx._memory import Array, Scratch

__all__ = ["WARP", "Shared"]

WARP = 32
THREAD_BITS, WARP_BITS = 20, 22  # of a note: its thread, and above that barriers of the warp, then those of the block
THREAD, WARP_TURNS = (1 << THREAD_BITS) - 1, (1 << WARP_BITS) - 1
NEVER = -1  # earlier than every barrier


class Shared:
    """Memory of `nbytes` for each block of `block_threads` of the threads."""

    def __init__(self, threads: int, block_threads: int, nbytes: int) -> None:
        self._block_threads = block_threads
        self._scratch = Scratch(threads // block_threads, nbytes, "shared")
        self._words = -(-nbytes // 16) * 4  # of a block
        self._notes = np.arange(threads)  # what each thread leaves where it reads or writes
        self._wrote = np.full(threads // block_threads * self._words, NEVER)
        self._read = self._wrote.copy()

    def load(self, threads: Array, address: Array, dtype: np.dtype[Any], count: int) -> list[Array]:
        """Return `count` neighbouring elements, one array each, of the threads' blocks."""
        values = self._scratch.load(threads // self._block_threads, address, dtype, count)
        places = self._places(threads, address, dtype.itemsize * count)
        self._require_order(self._wrote, places, threads, "read of shared memory that thread {} wrote")
        self._read[places] = self._notes[threads][:, None]
        return values

    def store(self, threads: Array, address: Array, values: list[Array]) -> None:
        """Write neighbouring elements of one type."""
        self._scratch.store(threads // self._block_threads, address, values)
        self._begin_write(threads, address, values[0].dtype.itemsize * len(values))

    def expect(self, threads: Array, address: Array, size: int) -> Array:
        """Mark places of `size` bytes as those of copies on their way; return what `arrive` takes for them."""
        places = self._scratch.expect(threads // self._block_threads, address, size)
        self._begin_write(threads, address, size)
        return places

    def arrive(self, threads: Array, first: Array, words: Array) -> None:
        """Let copies arrive that these threads began: uint32 `words` [places, words of each]."""
        self._scratch.arrive(first, words)
        self._wrote[first[:, None] + np.arange(words.shape[1])] = self._notes[threads][:, None]

    def pass_barrier(self, threads: Array, team: str) -> None:
        """Note that all threads of some warps, or blocks, have come together."""
        self._notes[threads] += 1 << (THREAD_BITS if team == "warp" else THREAD_BITS + WARP_BITS)

    def _begin_write(self, threads: Array, address: Array, nbytes: int) -> None:
        places = self._places(threads, address, nbytes)
        self._require_order(self._read, places, threads, "write to shared memory that thread {} reads")
        self._wrote[places] = self._notes[threads][:, None]

    def _places(self, threads: Array, address: Array, nbytes: int) -> Array:
        """Return the words of an access [threads, words]."""
        first = threads // self._block_threads * self._words + address.astype(np.int64) // 4
        return first[:, None] + np.arange(-(-nbytes // 4))

    def _require_order(self, notes: Array, places: Array, threads: Array, what: str) -> None:
        """Raise where no barrier lies between an access and the last one, by another thread, that was noted."""
        before, mine = notes[places], self._notes[threads][:, None]
        good = before >> (THREAD_BITS + WARP_BITS) < mine >> (THREAD_BITS + WARP_BITS)
        if good.all():
            return
        theirs, own = before & THREAD, mine & THREAD
        passed = (before >> THREAD_BITS & WARP_TURNS) < (mine >> THREAD_BITS & WARP_TURNS)
        good |= (theirs == own) | ((theirs // WARP == own // WARP) & passed)
        if not good.all():
            lane, word = np.argwhere(~good)[0]
            other = int(theirs[lane, word]) % self._block_threads
            raise PtxFault(f"{what.format(other)}, with no barrier between", int(lane))
