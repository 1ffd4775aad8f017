"""Two classic allocators of contiguous memory, in slots: buddies and first fit."""

from bisect import bisect
from typing import Protocol

__all__ = ["Allocator", "Buddy", "FirstFit"]


class Allocator(Protocol):
    """What hands out ranges of slots."""

    def allocate(self, size: int) -> tuple[int, int] | None:
        """Return the first slot and the number of slots given, at least `size`; None where no free range is so long."""
        ...

    def release(self, start: int) -> None:
        """Take back the range that begins at `start`."""
        ...


class Buddy:
    """Ranges of a power of two: split in halves on the way down, merged with their other half on the way up.

    Memory whose size is no power of two is a row of trees, the largest first. So each tree begins at a multiple of its
    size, and the other half of a range differs from it in one bit of the address.

    Examples
    --------
    >>> memory = Buddy(24)  # trees of 16 and 8
    >>> memory.allocate(5), memory.allocate(9), memory.allocate(9)
    ((16, 8), (0, 16), None)
    """

    def __init__(self, slots: int) -> None:
        self._free: list[set[int]] = [set() for _ in range(slots.bit_length())]  # by order: starts of free ranges
        self._order: dict[int, int] = {}  # start -> order of what is handed out
        start = 0
        for order in reversed(range(slots.bit_length())):
            if slots >> order & 1:
                self._free[order].add(start)
                start += 1 << order

    def allocate(self, size: int) -> tuple[int, int] | None:
        """Return the lowest of the smallest free ranges that hold `size`, cut to a power of two; see `Allocator`."""
        order = (size - 1).bit_length()
        found = next((larger for larger in range(order, len(self._free)) if self._free[larger]), None)
        if found is None:
            return None
        start = min(self._free[found])
        self._free[found].remove(start)
        for half in reversed(range(order, found)):
            self._free[half].add(start + (1 << half))
        self._order[start] = order
        return start, 1 << order

    def release(self, start: int) -> None:
        """Take a range back and merge it with free halves; see `Allocator`."""
        order = self._order.pop(start)
        while start ^ 1 << order in self._free[order]:
            self._free[order].remove(start ^ 1 << order)
            start &= ~(1 << order)
            order += 1
        self._free[order].add(start)


class FirstFit:
    """Ranges of any size, from the first hole that is long enough.

    Examples
    --------
    >>> memory = FirstFit(24)
    >>> memory.allocate(5), memory.allocate(9), memory.allocate(11)
    ((0, 5), (5, 9), None)
    """

    def __init__(self, slots: int) -> None:
        self._holes = [(0, slots)]  # start and end, ascending; no two touch
        self._ends: dict[int, int] = {}  # start -> end of what is handed out

    def allocate(self, size: int) -> tuple[int, int] | None:
        """Return a range of `size` slots from the first hole that holds it; see `Allocator`."""
        for i, (start, end) in enumerate(self._holes):
            if end - start >= size:
                self._holes[i : i + 1] = [(start + size, end)] if end - start > size else []
                self._ends[start] = start + size
                return start, size
        return None

    def release(self, start: int) -> None:
        """Take a range back and merge it with the holes that it touches; see `Allocator`."""
        end = self._ends.pop(start)
        after = before = bisect(self._holes, (start, end))
        if before and self._holes[before - 1][1] == start:
            before -= 1
            start = self._holes[before][0]
        if after < len(self._holes) and self._holes[after][0] == end:
            end = self._holes[after][1]
            after += 1
        self._holes[before:after] = [(start, end)]
