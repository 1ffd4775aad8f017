"""`MooncakeTier`: blocks in a Mooncake Store, the memory of several machines together.

An object per block, of the same name and bytes as on a Redis server (`pagedcache.tiers.frame`). A store is a put
session: room is reserved, bytes are sent, and its end makes the object readable. Loads are ranges of objects.
Mooncake moves bytes between memory that is registered with it, so they go through a buffer of the tier's own, and reach
the caller's arrays only after they were found right.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pagedcache.tiers._checked import checksums
from pagedcache.tiers._places import gather, leading_right, require_places, spread
from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.breaker import Breaker
from pagedcache.tiers.frame import Frame, Reading
from pagedcache.tiers.mooncake.objects import Objects
from pagedcache.tiers.protocol import Load, Places, Store, TierStats

__all__ = ["MooncakeTier"]


@dataclass(eq=False, slots=True)
class _Session:
    """Objects that are reserved, and which of them have their bytes."""

    names: list[str]
    sent: list[bool]


class MooncakeTier:
    """Blocks in a Mooncake Store.

    Nothing that the store does makes a method raise, besides `bind`. Calls are done one after the other.

    Parameters
    ----------
    store : mooncake.store.MooncakeDistributedStore
        Set up; the tier does not close it.
    prefix : str
        What the keys begin with, ``<prefix>:<format id>:<digest>``.
    buffer_bytes : int
        Of memory that bytes go through; at least a block's.
    max_failures : int
        Failures in a row after which the store is left alone.
    retry_after : float
        Seconds that it is.

    Notes
    -----
    Time-outs are Mooncake's own: a master that hangs, rather than being away, holds a call for 30 s, after which the
    breaker opens. Objects cannot be pinned once they are stored: `pin` only counts. Who reads or asks for an object
    has a lease on it for some seconds.

    Examples
    --------
    >>> from mooncake.store import MooncakeDistributedStore  # doctest: +SKIP
    >>> store = MooncakeDistributedStore()  # doctest: +SKIP
    >>> store.setup(host, "P2PHANDSHAKE", 8 << 30, 64 << 20, "tcp", "", "master:50051")  # doctest: +SKIP
    >>> tier = MooncakeTier(store)  # doctest: +SKIP
    """

    name = "mooncake"
    writes: Literal["back", "through"] = "through"

    def __init__(
        self,
        store: Any,
        *,
        prefix: str = "pagedcache",
        buffer_bytes: int = 16 << 20,
        max_failures: int = 1,
        retry_after: float = 30.0,
    ) -> None:
        if not prefix:
            raise ValueError("prefix is empty: give one that no other user of the store has")
        if buffer_bytes < 1:
            raise ValueError(f"buffer_bytes is {buffer_bytes}; it must be above 0")
        self._objects = Objects(store, Breaker(max_failures, retry_after))
        self._prefix, self._buffer_bytes = prefix, buffer_bytes
        self._form: BlockFormat | None = None
        self._frame: Frame | None = None
        self._pins: dict[str, set[bytes]] = {}
        self._stats = TierStats()
        self._lock = threading.Lock()  # of the statistics and the pins

    def bind(self, form: BlockFormat) -> None:
        """From here on blocks are of this format; TierError where Mooncake does not take the buffer."""
        if self._form is not None:
            form.require(self._form, "this MooncakeTier")
            return
        frame = Frame(form)
        self._objects.register(max(self._buffer_bytes, frame.nbytes + form.block_nbytes))
        self._form, self._frame = form, frame

    def longest_prefix(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are there."""
        names = self._names(keys)
        found: list[bool] = self._objects.attempt(lambda: self._objects.exist(names), [])
        return next((i for i, there in enumerate(found) if not there), len(found))

    def prepare_load(self, keys: Sequence[bytes]) -> Load:
        """Fetch the headers of the leading blocks that are there; the store may still evict them before `load`."""
        form, frame = self._bound()
        names = self._names(keys)
        sums: list[NDArray[np.uint32]] = []

        def fetch() -> bool:
            for part in self._objects.parts(len(names), frame.nbytes):
                headers, short = self._objects.ranges(names[part], 0, frame.nbytes)
                for key, header in zip(keys[part], headers, strict=False):
                    crcs = frame.checksums(header.tobytes(), key)
                    if crcs is None:
                        return True
                    sums.append(crcs)
                if len(sums) < part.stop:
                    return short
            return False

        wrong = self._objects.attempt(fetch, False)
        count = len(sums)
        if wrong:
            self._forget_wrong(names[count])
        self._count(misses=len(keys) - count)
        return Load(keys, count, Reading(names[:count], np.array(sums, np.uint32).reshape(count, form.layers), count))

    def load(self, load: Load, layers: range, places: Places) -> int:
        """Fill ``places.layers[i]`` for i in `layers`; of the load's blocks, how many leading ones are right."""
        form, frame = self._bound()
        reading: Reading = load.state
        require_places(form, places, layers, load.count, "into")
        wanted, reading.used = reading.right, True
        if not wanted or not layers:
            return wanted
        offset, nbytes = frame.nbytes + layers.start * form.record_nbytes, len(layers) * form.record_nbytes
        reading.right = 0

        def fetch() -> bool:
            for part in self._objects.parts(wanted, nbytes):
                staged, _ = self._objects.ranges(reading.names[part], offset, nbytes)
                there = Places.of_records(staged.reshape(-1, len(layers), form.record_nbytes))
                crcs = reading.crcs[part, layers.start : layers.stop][: len(staged)]
                right = leading_right(there, range(len(layers)), crcs)
                spread(staged[:right], places[part.start : part.start + right], layers)
                reading.right += right
                if reading.right < part.stop:
                    return True
            return False

        if self._objects.attempt(fetch, False):
            self._forget_wrong(reading.names[reading.right])
        return reading.right

    def complete_load(self, load: Load) -> None:
        """Count the blocks as used."""
        reading: Reading = load.state
        if reading.used:
            self._count(hits=reading.right)
        reading.right = 0

    def prepare_store(self, keys: Sequence[bytes]) -> Store:
        """Reserve room for those that are not there."""
        form, frame = self._bound()
        names = self._names(keys)

        def reserve() -> list[int]:
            missing = [i for i, there in enumerate(self._objects.exist(names)) if not there]
            given = self._objects.reserve([names[i] for i in missing], frame.nbytes + form.block_nbytes)
            return [i for i, good in zip(missing, given, strict=True) if good]

        wanted: list[int] = self._objects.attempt(reserve, [])
        return Store(keys, np.array(wanted, np.int64), _Session([names[i] for i in wanted], [False] * len(wanted)))

    def store(self, store: Store, places: Places) -> None:
        """Send the bytes of the wanted blocks."""
        form, frame = self._bound()
        session: _Session = store.state
        require_places(form, places, range(form.layers), len(store.wanted), "from")
        digests = [store.keys[i] for i in store.wanted]

        nbytes = frame.nbytes + form.block_nbytes

        def send() -> None:
            for part in self._objects.parts(len(digests), nbytes):
                self._fill(digests[part], places[part], nbytes)
                self._objects.send(session.names[part], nbytes)
                session.sent[part] = [True] * (part.stop - part.start)

        self._objects.attempt(send, None)

    def complete_store(self, store: Store) -> int:
        """Make them readable; how many became so."""
        session: _Session = store.state
        names, store.state = session.names, _Session([], [])
        ready = [name for name, sent in zip(names, session.sent, strict=True) if sent]
        self._objects.revoke([name for name, sent in zip(names, session.sent, strict=True) if not sent])
        published = self._objects.publish(ready)
        self._count(stored=sum(published), errors=len(published) - sum(published))
        return sum(published)

    def abort_store(self, store: Store) -> None:
        """Give the room back."""
        names, store.state = store.state.names, _Session([], [])
        self._objects.revoke(names)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Count these as used: to ask for an object renews its lease."""
        self.longest_prefix(keys)

    def pin(self, keys: Sequence[bytes], name: str) -> int:
        """Count which are there; Mooncake pins no object that is stored already."""
        names = self._names(keys)
        found: list[bool] = self._objects.attempt(lambda: self._objects.exist(names), [])
        with self._lock:
            self._pins.setdefault(name, set()).update(key for key, there in zip(keys, found, strict=False) if there)
        return sum(found)

    def unpin(self, name: str) -> int:
        """Undo pin; how many it counted."""
        with self._lock:
            return len(self._pins.pop(name, ()))

    def remove(self, keys: Sequence[bytes]) -> int:
        """Forget these, for all who share the store; how many were there."""
        with self._lock:
            for held in self._pins.values():
                held.difference_update(keys)
        return self._objects.remove(self._names(keys))

    def stats(self) -> TierStats:
        """A snapshot of what this object has done; the store is not asked. Sizes and evictions are 0."""
        objects = self._objects
        with self._lock:
            return replace(self._stats, errors=self._stats.errors + objects.errors, more={"refused": objects.refused})

    def close(self) -> None:
        """Give the buffer back; from then on nothing is there."""
        self._objects.close()

    def _bound(self) -> tuple[BlockFormat, Frame]:
        if self._form is None or self._frame is None:
            raise RuntimeError("the tier knows no format: call bind first")
        return self._form, self._frame

    def _names(self, keys: Sequence[bytes]) -> list[str]:
        return self._bound()[1].names(self._prefix, keys)

    def _fill(self, digests: list[bytes], places: Places, nbytes: int) -> None:
        """Lay blocks and their headers into the buffer, one behind the other."""
        frame, count = self._bound()[1], len(digests)
        objects = self._objects.buffer[: count * nbytes].reshape(count, nbytes)
        crcs = np.stack([checksums(layer, places.rows) for layer in places.layers], axis=1)
        headers = b"".join([frame.header(digest, sums) for digest, sums in zip(digests, crcs, strict=True)])
        objects[:, : frame.nbytes] = np.frombuffer(headers, np.uint8).reshape(count, frame.nbytes)
        gather(places, objects[:, frame.nbytes :])

    def _forget_wrong(self, name: str) -> None:
        """Remove a block that is not what it should be; one that has just been evicted does not count."""
        self._count(corrupt=self._objects.remove([name]))

    def _count(self, **by: int) -> None:
        with self._lock:
            for name, more in by.items():
                setattr(self._stats, name, getattr(self._stats, name) + more)
