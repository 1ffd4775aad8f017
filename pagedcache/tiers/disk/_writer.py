"""The one writer of a folder: what becomes visible and what is forgotten, in the index and in memory alike.

The order of things is what makes a crash harmless:

1. rows of blocks that give way are deleted and committed before their slots are written;
2. a block's bytes are durable before its row is committed;
3. memory follows the index, never the other way round.

Nothing here locks: `DiskTier` calls one method at a time.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from pagedcache.errors import TierError
from pagedcache.tiers.disk._catalog import Catalog
from pagedcache.tiers.disk._files import is_full
from pagedcache.tiers.disk._index import Index, NotCommitted
from pagedcache.tiers.disk._slab import Slab

__all__ = ["Writer"]

STEP_NBYTES = 64 << 20  # of the slab's growth, or as much as is there already if that is less
AHEAD = 16  # at most this part of all slots is freed before it is asked for


class Writer:
    """What a writer can do.

    Parameters
    ----------
    slab : Slab
    index : Index
    most : int
        Slots that the size limit allows.
    """

    def __init__(self, slab: Slab, index: Index, most: int) -> None:
        self.slab, self.index, self.most = slab, index, most
        self.catalog, self.dropped, self._clock = load_catalog(slab, index)
        self.healthy = True  # False: the medium failed so that it cannot be told what is on it; no more is stored
        self.evicted = 0
        self.failures = 0  # that were lived with, so that nobody was told
        self.pending: set[bytes] = set()  # being stored
        self._unsaved: dict[bytes, int] = {}  # uses that the index does not know of

    def wanted(self, keys: Sequence[bytes]) -> list[int]:
        """Which of the keys are neither there nor being stored, each once."""
        if not self.healthy:
            return []
        seen: set[bytes] = set()
        numbers = []
        for number, key in enumerate(keys):
            if key not in self.catalog.slots and key not in self.pending and key not in seen:
                numbers.append(number)
                seen.add(key)
        return numbers

    def room(self, count: int, keep: Collection[bytes]) -> NDArray[np.int64]:
        """Take up to `count` slots: free ones, new ones, those of the least recently used blocks not in `keep`."""
        missing = count - self.catalog.free
        if missing > 0 and self.catalog.count < self.most:
            self._grow(missing)
            missing = count - self.catalog.free
        if missing > 0:
            victims = self.catalog.victims(missing, keep)
            try:
                self.forget(victims)
                self.evicted += len(victims)
            except NotCommitted:
                self.failures += 1
        return self.catalog.take(count)

    def _grow(self, missing: int) -> None:
        """Add slots, some more than are missing; where the disk is full, stay at what there is."""
        before = self.catalog.count
        step = max(missing, min(before, STEP_NBYTES // self.slab.slot_nbytes))
        for wanted in (min(before + step, self.most), min(before + missing, self.most)):
            try:
                self.slab.resize(wanted)
            except TierError as error:
                if not is_full(error):
                    raise
                self.failures += 1
            else:
                self.catalog.resize(wanted)
                return
        self.stop_growing()

    def stop_growing(self) -> None:
        """Go on with the slots that there are."""
        self.most = min(self.most, self.catalog.count)

    def used(self, keys: Sequence[bytes]) -> None:
        """Count as used, where they are there; the index learns of it with the next commit."""
        for digest in self.catalog.use(keys):
            self._clock += 1
            self._unsaved[digest] = self._clock

    def publish(self, digests: Sequence[bytes], slots: Sequence[int]) -> None:
        """Make blocks visible whose bytes are durable, and free slots for as many more."""
        ahead = self._victims_ahead(len(digests))
        first = self._clock + len(digests)  # the head of a chain counts as used last
        numbered = [(digest, slot, first - i) for i, (digest, slot) in enumerate(zip(digests, slots, strict=True))]
        self._commit(ahead, numbered)
        self._clock = first
        self._forgotten(ahead)
        self.evicted += len(ahead)
        for digest, slot in zip(reversed(digests), reversed(slots), strict=True):
            self.catalog.add(digest, slot)

    def _victims_ahead(self, count: int) -> list[bytes]:
        """Blocks to drop in the same commit, so that the next group finds its room without one of its own."""
        if self.catalog.count < self.most:
            return []
        return self.catalog.victims(min(count, self.most // AHEAD) - self.catalog.free)

    def forget(self, digests: Sequence[bytes]) -> None:
        """Forget blocks, and then count their slots as free."""
        if digests:
            self._commit(digests, [])
            self._forgotten(digests)

    def lose(self, digest: bytes) -> None:
        """Forget a block that is not what it should be; where the index cannot be told, its slot stays out of use."""
        try:
            self.forget([digest])
        except TierError:
            self.failures += 1
            self.catalog.slots.pop(digest, None)

    def _forgotten(self, digests: Iterable[bytes]) -> None:
        self.catalog.forget(digests)
        for digest in digests:
            self._unsaved.pop(digest, None)

    def moved(self, rows: Sequence[tuple[bytes, int]]) -> None:
        """Blocks are in other slots, where their bytes are durable."""
        with self._safely(), self.index.transaction():
            self.index.move((slot, digest) for digest, slot in rows)
        for digest, slot in rows:
            self.catalog.move(digest, slot)

    def pin(self, digests: Sequence[bytes], name: str) -> int:
        """Keep blocks from eviction; how many are there."""
        there = {digest for digest in digests if digest in self.catalog.slots}
        with self._safely(), self.index.transaction():
            self.index.pin(name, there)
        self.catalog.pin(name, there)
        return len(there)

    def unpin(self, name: str) -> int:
        """Undo pin; how many it held."""
        with self._safely(), self.index.transaction():
            self.index.unpin(name)
        return self.catalog.unpin(name)

    def tidy(self) -> int:
        """Drop what is of no use from the index; how many rows there were that made no sense."""
        with self._safely(), self.index.transaction():
            orphans = self.index.drop_orphans()
        self.index.compact()
        return self.dropped + orphans

    def save_use(self) -> None:
        """Let the index know of uses."""
        if self._unsaved and self.healthy:
            self._commit([], [])

    def _commit(self, gone: Iterable[bytes], new: Iterable[tuple[bytes, int, int]]) -> None:
        with self._safely(), self.index.transaction():
            self.index.delete(gone)
            self.index.use((used, digest) for digest, used in self._unsaved.items())
            self.index.insert(new)
        self._unsaved.clear()

    def _safely(self) -> "_Safely":
        return _Safely(self)


class _Safely:
    """Where the index fails in a way that leaves open what it has committed, no more is stored."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        if not self._writer.healthy:
            raise TierError(f"{self._writer.index.path} failed before; open the tier again")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, NotCommitted):
            self._writer.healthy = False


def load_catalog(slab: Slab, index: Index) -> tuple[Catalog, int, int]:
    """Return what the index knows, how many rows made no sense and are deleted from it, and the latest use."""
    digests, slots, latest = index.rows()
    count = slab.count
    right = np.zeros(len(slots), bool)
    right[np.unique(slots, return_index=True)[1]] = True  # a slot holds one block at most
    right &= slots < count
    dropped = index.count() - int(right.sum())
    if dropped:
        with index.transaction():
            index.delete(digest for digest, good in zip(digests, right, strict=True) if not good)
            index.delete_others(count)
        digests = [digest for digest, good in zip(digests, right, strict=True) if good]
    return Catalog(digests, slots[right], index.pins(), count), dropped, latest
