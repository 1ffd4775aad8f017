"""The nearest tier: blocks in the host's memory, which eviction from the pool would lose."""

import mmap
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pagedcache._sizes import parse_bytes
from pagedcache.errors import TierError
from pagedcache.tiers._copies import copy_records
from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.protocol import Load, Places, Store, TierStats

__all__ = ["HostTier"]


class HostTier:
    """Blocks in host memory; the least recently used give way.

    Gone with the process, and not checked when they are read: memory is trusted as that of the pool is.

    Parameters
    ----------
    memory : int or str
        Bytes for blocks, or text such as ``"4 GiB"``. Taken from the system as it is filled.

    Examples
    --------
    >>> from pagedcache import CacheSpec
    >>> tier = HostTier("1 MiB")
    >>> tier.bind(BlockFormat.of(CacheSpec(1, 1, 8, block_size=4, fingerprint=b"tiny")))
    >>> store = tier.prepare_store([b"k" * 32])
    >>> tier.store(store, Places.of_records(np.ones((1, 1, 256), np.uint8)))
    >>> tier.complete_store(store), tier.longest_prefix([b"k" * 32, b"?" * 32])
    (1, 1)
    """

    name = "host"
    writes: Literal["back", "through"] = "back"

    def __init__(self, memory: int | str) -> None:
        self._memory = parse_bytes(memory)
        self._lock = threading.Lock()
        self._form: BlockFormat | None = None
        self._arena: NDArray[np.uint8] = np.empty((0, 0, 0), np.uint8)  # [slots, layers, record]
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # visible blocks, the least recently used first
        self._free: list[int] = []
        self._readers: Counter[int] = Counter()  # loads that are not complete, by slot
        self._removed: set[int] = set()  # slots that wait for their readers
        self._pins: dict[str, set[bytes]] = {}
        self._stats = TierStats(capacity=self._memory)

    def bind(self, form: BlockFormat) -> None:
        """From here on blocks are of this format; ValueError where there is no room for one."""
        with self._lock:
            if self._form is not None:
                self._form.require(form, "the host tier")
                return
            slots = self._memory // form.block_nbytes
            if slots < 1:
                raise ValueError(f"the host tier has {self._memory} bytes; one block takes {form.block_nbytes}")
            memory = mmap.mmap(-1, slots * form.block_nbytes)
            with suppress(AttributeError, OSError):  # where there are none, small pages do
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._arena = np.frombuffer(memory, np.uint8).reshape(slots, form.layers, form.record_nbytes)
            self._free = list(range(slots - 1, -1, -1))
            self._form = form

    def longest_prefix(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are there."""
        with self._lock:
            return self._leading(keys)

    def prepare_load(self, keys: Sequence[bytes]) -> Load:
        """Hold the leading blocks that are there."""
        with self._lock:
            count = self._leading(keys)
            slots = [self._slots[key] for key in keys[:count]]
            self._readers.update(slots)
            self._stats.hits += count
            self._stats.misses += len(keys) - count
            return Load(keys, count, (self._arena, np.array(slots, np.int64)))

    def load(self, load: Load, layers: range, places: Places) -> int:
        """Copy these layers to their places."""
        arena, slots = load.state
        for layer in layers:
            into = places.layers[layer]
            copy_records(_pieces(arena, layer, into), slots, into, places.rows[: load.count])
        return load.count

    def complete_load(self, load: Load) -> None:
        """Let the blocks go, as used just now."""
        arena, slots = load.state
        with self._lock:
            if arena is not self._arena:
                return  # closed meanwhile
            self._readers.subtract(slots.tolist())
            self._readers = +self._readers
            left = {slot for slot in self._removed if not self._readers[slot]}
            self._removed -= left
            self._free += left
            self._use(load.keys[: load.count])

    def prepare_store(self, keys: Sequence[bytes]) -> Store:
        """Make room for those that are not there."""
        wanted, slots = [], []
        with self._lock:
            if self._form is None:
                raise TierError("the host tier has not been bound to a cache, or is closed")
            missing: set[bytes] = set()
            for number, key in enumerate(keys):
                if key in self._slots or key in missing:
                    continue
                slot = self._free.pop() if self._free else self._evict()
                if slot is None:
                    break
                missing.add(key)
                wanted.append(number)
                slots.append(slot)
            return Store(keys, np.array(wanted, np.int64), (self._arena, np.array(slots, np.int64)))

    def store(self, store: Store, places: Places) -> None:
        """Copy the bytes of the wanted blocks."""
        arena, slots = store.state
        for layer, source in enumerate(places.layers):
            copy_records(source, places.rows, _pieces(arena, layer, source), slots)

    def complete_store(self, store: Store) -> int:
        """Make them visible."""
        stored = 0
        arena, slots = store.state
        with self._lock:
            if arena is not self._arena:
                return 0  # closed meanwhile
            for number, slot in zip(store.wanted.tolist(), slots.tolist(), strict=True):
                if store.keys[number] in self._slots:  # somebody else was faster
                    self._free.append(slot)
                else:
                    self._slots[store.keys[number]] = slot
                    stored += 1
            self._stats.stored += stored
        return stored

    def abort_store(self, store: Store) -> None:
        """Give the room back."""
        arena, slots = store.state
        with self._lock:
            if arena is self._arena:
                self._free += slots.tolist()

    def touch(self, keys: Sequence[bytes]) -> None:
        """Count these as used, where they are there."""
        with self._lock:
            self._use(keys)

    def pin(self, keys: Sequence[bytes], name: str) -> int:
        """Keep these from eviction until unpin(name); how many are there."""
        with self._lock:
            there = [key for key in keys if key in self._slots]
            self._pins.setdefault(name, set()).update(there)
            return len(there)

    def unpin(self, name: str) -> int:
        """Undo pin; how many it held."""
        with self._lock:
            return len(self._pins.pop(name, ()))

    def remove(self, keys: Sequence[bytes]) -> int:
        """Forget these; how many were there."""
        with self._lock:
            there = [key for key in keys if key in self._slots]
            for key in there:
                slot = self._slots.pop(key)
                if self._readers[slot]:
                    self._removed.add(slot)
                else:
                    self._free.append(slot)
            for pinned in self._pins.values():
                pinned.difference_update(there)
        return len(there)

    def stats(self) -> TierStats:
        """A snapshot."""
        with self._lock:
            blocks = len(self._slots)
            size = self._form.block_nbytes if self._form else 0
            now = self._stats
            return TierStats(
                blocks, blocks * size, now.capacity, now.hits, now.misses, now.stored, now.evicted
            )  # fmt: skip

    def close(self) -> None:
        """Give the memory back."""
        with self._lock:
            self._form = None
            self._slots.clear()
            self._free.clear()
            self._pins.clear()
            self._readers.clear()
            self._removed.clear()
            self._arena = np.empty((0, 0, 0), np.uint8)

    def _leading(self, keys: Sequence[bytes]) -> int:
        return next((n for n, key in enumerate(keys) if key not in self._slots), len(keys))

    def _use(self, keys: Iterable[bytes]) -> None:
        """These were used, those at the end of a prompt least: they give way before what they continue."""
        for key in reversed(list(keys)):
            if key in self._slots:
                self._slots.move_to_end(key)

    def _evict(self) -> int | None:
        """The slot of the least recently used block that nobody reads or has pinned; None where there is none."""
        pinned = set().union(*self._pins.values())
        for key, slot in self._slots.items():
            if key not in pinned and not self._readers[slot]:
                self._stats.evicted += 1
                return self._slots.pop(key)
        return None


def _pieces(arena: NDArray[np.uint8], layer: int, like: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """A layer's records in the arena, cut as the pieces on the other side are."""
    ends = np.cumsum([piece.shape[1] for piece in like])
    records = arena[:, layer]
    return [records[:, end - piece.shape[1] : end] for piece, end in zip(like, ends.tolist(), strict=True)]
