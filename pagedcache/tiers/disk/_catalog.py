"""What the writer keeps in memory: which digest is in which slot, by last use; pins; slots that are free or in use."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Catalog"]

Numbers = NDArray[np.int64]


class Catalog:
    """Blocks of a tier and the slots of its slab.

    Parameters
    ----------
    digests : sequence of bytes
        The least recently used first.
    slots : int64 [blocks]
        Theirs, below `count`, each once.
    pins : iterable of (name, digest)
    count : int
        Slots there are.
    """

    def __init__(self, digests: Sequence[bytes], slots: Numbers, pins: Iterable[tuple[str, bytes]], count: int) -> None:
        self.slots: OrderedDict[bytes, int] = OrderedDict(zip(digests, slots.tolist(), strict=True))
        self._free = np.ones(count, bool)
        self._free[slots] = False
        self._held: Counter[int] = Counter()  # by slot: loads that read it
        self._left: set[int] = set()  # slots whose block is forgotten while a load reads them
        self._pins: dict[str, set[bytes]] = {}
        self._pinned: Counter[bytes] = Counter()
        for name, digest in pins:
            self.pin(name, [digest])

    @property
    def count(self) -> int:
        """Slots there are."""
        return len(self._free)

    @property
    def free(self) -> int:
        """Slots that may be written."""
        return int(self._free.sum())

    @property
    def pinned(self) -> int:
        """Blocks that a pin holds."""
        return len(self._pinned)

    def resize(self, count: int) -> None:
        """Have `count` slots; new ones are free, and those that go have to be."""
        kept = self._free[:count]
        self._free = np.concatenate([kept, np.ones(count - len(kept), bool)])

    def free_below(self, count: int) -> NDArray[np.bool_]:
        """Which of the first slots are free."""
        return self._free[:count].copy()

    def take(self, count: int) -> Numbers:
        """Take free slots, the lowest first; as many as there are."""
        slots = np.flatnonzero(self._free)[:count]
        self._free[slots] = False
        return slots

    def give(self, slots: Iterable[int]) -> None:
        """Slots that hold nothing visible are free, those that a load reads as soon as it ends."""
        for slot in slots:
            if self._held[slot]:
                self._left.add(slot)
            else:
                self._free[slot] = True

    def hold(self, slots: Iterable[int]) -> None:
        """Keep slots from being written until `release`."""
        self._held.update(slots)

    def release(self, slots: Iterable[int]) -> None:
        """Undo `hold`."""
        for slot in slots:
            self._held[slot] -= 1
            if not self._held[slot]:
                del self._held[slot]
                if slot in self._left:
                    self._left.remove(slot)
                    self._free[slot] = True

    def leading(self, digests: Sequence[bytes]) -> list[int]:
        """Slots of the leading digests that are there."""
        found = []
        for digest in digests:
            slot = self.slots.get(digest)
            if slot is None:
                break
            found.append(slot)
        return found

    def use(self, digests: Sequence[bytes]) -> list[bytes]:
        """Count as used; those that are there, as they stand by use now.

        The first counts as used last, so that a chain loses its tail before its head, without which the tail is
        of no use.
        """
        there = [digest for digest in reversed(digests) if digest in self.slots]
        for digest in there:
            self.slots.move_to_end(digest)
        return there

    def add(self, digest: bytes, slot: int) -> None:
        """A block became visible."""
        self.slots[digest] = slot

    def move(self, digest: bytes, slot: int) -> None:
        """A block is in another slot, which was free."""
        self.give([self.slots[digest]])
        self.slots[digest] = slot
        self._free[slot] = False

    def forget(self, digests: Iterable[bytes]) -> None:
        """Blocks are not there any more; their slots are free."""
        for digest in digests:
            slot = self.slots.pop(digest, None)
            if slot is None:
                continue
            if self._pinned.pop(digest, 0):
                for held in self._pins.values():
                    held.discard(digest)
            self.give([slot])

    def victims(self, count: int, keep: Collection[bytes] = ()) -> list[bytes]:
        """The least recently used blocks that nothing holds: no pin, no load, not in `keep`."""
        found: list[bytes] = []
        for digest, slot in self.slots.items():
            if len(found) >= count:
                break
            if digest not in self._pinned and slot not in self._held and digest not in keep:
                found.append(digest)
        return found

    def pin(self, name: str, digests: Iterable[bytes]) -> None:
        """Hold blocks by name; those that are not there are left out."""
        held = self._pins.setdefault(name, set())
        new = {digest for digest in digests if digest in self.slots} - held
        held |= new
        self._pinned.update(new)

    def unpin(self, name: str) -> int:
        """Drop a name; how many blocks it held."""
        held = self._pins.pop(name, set())
        for digest in held:
            self._pinned[digest] -= 1
            if not self._pinned[digest]:
                del self._pinned[digest]
        return len(held)

    def names(self) -> dict[str, int]:
        """The names of pins, and how many blocks each holds."""
        return {name: len(held) for name, held in self._pins.items()}
