"""Memory that a kernel may touch: registered arrays of the host, and what belongs to a block or a thread.

Both say at the first access that leaves it, is misaligned, or reads what nobody wrote.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault

__all__ = ["Array", "Memory", "Region", "Scratch"]

Array = npt.NDArray[Any]

UNWRITTEN, WRITTEN, COMING = 0, 1, 2  # states of a byte of scratch memory
POISON = 0xFF  # NaN as a float, -1 as an integer
STATE_OF = {size: int.from_bytes(bytes([WRITTEN]) * size, "little") for size in (1, 2, 4, 8)}


class _Span:
    """A view of the process's memory, for NumPy's array interface."""

    def __init__(self, begin: int, nbytes: int) -> None:
        self.__array_interface__ = {"data": (begin, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}


class Region(NamedTuple):
    """Memory of the host that kernels may touch."""

    begin: int  # address
    end: int
    writable: bool

    @classmethod
    def of(cls, array: Array) -> "Region":
        """Return the region of an array, with what lies between its elements."""
        return cls(*np.lib.array_utils.byte_bounds(array), array.flags.writeable)


class Memory:
    """Regions of the host's memory, at their own addresses; whoever has them must keep them alive.

    Notes
    -----
    One view spans them all and what lies between, of which an element is touched only after its address was found
    inside a region.
    """

    def __init__(self, given: Iterable[Region]) -> None:
        regions = _joined(given)
        self._begins = np.array([region.begin for region in regions], np.uint64)
        self._ends = np.array([region.end for region in regions], np.uint64)
        self._writable = np.array([region.writable for region in regions], np.bool_)
        self._origin = min((region.begin for region in regions), default=0) // 16 * 16
        last = max((region.end for region in regions), default=0)
        self._views = _views(np.asarray(_Span(self._origin, -(-(last - self._origin) // 16) * 16)))

    def load(self, address: Array, dtype: np.dtype[Any], count: int) -> list[Array]:
        """Return `count` neighbouring elements at uint64 addresses, one array each."""
        first = self._elements(address, dtype.itemsize, count, writing=False)
        view = self._views[dtype.itemsize]
        return [view[first + i].view(dtype) for i in range(count)]

    def store(self, address: Array, values: list[Array]) -> None:
        """Write neighbouring elements of one type at uint64 addresses; of lanes with the same address the last wins."""
        size = values[0].dtype.itemsize
        first = self._elements(address, size, len(values), writing=True)
        for i, value in enumerate(values):
            self._views[size][first + i] = value.view(f"u{size}")

    def _elements(self, address: Array, size: int, count: int, *, writing: bool) -> Array:
        """Return the index of the first element in the view of `size` bytes, of addresses that are right."""
        nbytes = np.uint64(size * count)
        which = np.searchsorted(self._begins, address, side="right").astype(np.int64) - 1
        inside = which >= 0
        if self._ends.size:
            inside &= address + nbytes <= self._ends[which]
        if not inside.all():
            lane = int(np.argmin(inside))
            raise PtxFault(f"address {int(address[lane]):#x} + {nbytes} bytes is in no registered memory", lane)
        if writing and not self._writable[which].all():
            raise PtxFault("write to memory that is read-only", int(np.argmin(self._writable[which])))
        _require_aligned(address, int(nbytes))
        return (address.astype(np.int64) - self._origin) // size


class Scratch:
    """Memory of each of a number of owners, blocks or threads, that starts without contents.

    Parameters
    ----------
    owners, nbytes
        How many there are, and bytes of each.
    what
        Its name in messages.
    """

    def __init__(self, owners: int, nbytes: int, what: str) -> None:
        self.nbytes, self.what = nbytes, what
        self._pitch = -(-nbytes // 16) * 16
        self._views = _views(np.full(owners * self._pitch, POISON, np.uint8))
        self._states = _views(np.zeros(owners * self._pitch, np.uint8))

    def load(self, owner: Array, address: Array, dtype: np.dtype[Any], count: int) -> list[Array]:
        """Return `count` neighbouring elements, one array each, of each owner's memory."""
        size = dtype.itemsize
        first = self._elements(owner, address, size, count)
        for i in range(count):
            self._require_written(first + i, size, address)
        return [self._views[size][first + i].view(dtype) for i in range(count)]

    def store(self, owner: Array, address: Array, values: list[Array]) -> None:
        """Write neighbouring elements of one type."""
        size = values[0].dtype.itemsize
        first = self._elements(owner, address, size, len(values))
        for i, value in enumerate(values):
            if (self._states[1][((first + i) * size)] == COMING).any():
                raise PtxFault(f"write to {self.what} memory that a copy is on its way to")
            self._views[size][first + i] = value.view(f"u{size}")
            self._states[size][first + i] = STATE_OF[size]

    def expect(self, owner: Array, address: Array, size: int) -> Array:
        """Mark places of `size` bytes as those of copies on their way; return what `arrive` takes for them."""
        first = self._elements(owner, address, size, 1) * (size // 4)
        for i in range(size // 4):
            if (self._states[1][(first + i) * 4] == COMING).any():
                raise PtxFault(f"copy to {self.what} memory that another copy is on its way to")
            self._views[4][first + i] = 0xFFFFFFFF
            self._states[4][first + i] = STATE_OF[4] * COMING
        return first

    def arrive(self, first: Array, words: Array) -> None:
        """Let copies arrive: uint32 `words` [places, words of each]."""
        for i in range(words.shape[1]):
            self._views[4][first + i] = words[:, i]
            self._states[4][first + i] = STATE_OF[4]

    def _elements(self, owner: Array, address: Array, size: int, count: int) -> Array:
        address = address.astype(np.int64)
        inside = (address >= 0) & (address + size * count <= self.nbytes)
        if not inside.all():
            lane = int(np.argmin(inside))
            what = f"{self.what} address {int(address[lane])} + {size * count} bytes"
            raise PtxFault(f"{what} is beyond the {self.nbytes} there are", lane)
        _require_aligned(address, size * count)
        return (owner * self._pitch + address) // size

    def _require_written(self, elements: Array, size: int, address: Array) -> None:
        good = self._states[size][elements] == STATE_OF[size]
        if good.all():
            return
        lane = int(np.argmin(good))
        states = self._states[1][elements[lane] * size :][:size]
        why = "a copy is on its way to" if (states == COMING).any() else "nobody wrote"
        raise PtxFault(f"read of {self.what} memory that {why}, address {int(address[lane])}", lane)


def _joined(given: Iterable[Region]) -> list[Region]:
    """Return regions in the order of their addresses, those that overlap made one."""
    regions: list[Region] = []
    for region in sorted(region for region in given if region.begin < region.end):
        if regions and region.begin < regions[-1].end:
            before = regions.pop()
            region = Region(before.begin, max(before.end, region.end), before.writable or region.writable)
        regions.append(region)
    return regions


def _views(memory: Array) -> dict[int, Array]:
    """Return the same bytes as unsigned integers of each size."""
    return {size: memory.view(f"u{size}") for size in (1, 2, 4, 8)}


def _require_aligned(address: Array, nbytes: int) -> None:
    low = address & address.dtype.type(nbytes - 1)
    if low.any():
        raise PtxFault(f"access of {nbytes} bytes is misaligned", int(np.argmax(low != 0)))
