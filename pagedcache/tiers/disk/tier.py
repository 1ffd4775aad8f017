"""The disk tier: blocks in a folder, visible when they are durable, verified whenever they are read."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from pagedcache.digests import DIGEST_SIZE
from pagedcache.errors import TierError
from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.disk._files import is_full
from pagedcache.tiers.disk._handles import Reading, Writing, require_fit
from pagedcache.tiers.disk._opening import Opened, read_format
from pagedcache.tiers.disk._session import Session
from pagedcache.tiers.disk._writer import Writer
from pagedcache.tiers.protocol import Load, Places, Store, TierStats

__all__ = ["DiskTier"]


class DiskTier(Session):
    """Blocks in a folder: a slab file with a checksum for each record, and an SQLite index.

    Parameters
    ----------
    path : str or Path
        A folder; created, for its user alone, when the tier is bound. Links, and what others may write, are refused.
    size : int or str
        What all files together may take, such as ``"20 GiB"``; less than is there makes the oldest blocks go. Readers
        need none.
    readonly : bool
        Look only; any number of processes may do so beside one that writes, on the same machine.
    sync : bool
        False leaves to the system when blocks reach the disk: after a power cut some are missing, none is wrong.

    Notes
    -----
    Any thread may call. After ``fork()`` the child's tier finds nothing and stores nothing; it can open one of its
    own, to read. See ``docs/disk_format.md`` for the files and for what is promised.

    Examples
    --------
    >>> import tempfile
    >>> from pagedcache import CacheSpec
    >>> form = BlockFormat.of(CacheSpec(layers=2, kv_heads=1, head_dim=8, block_size=4, fingerprint=b"tiny"))
    >>> key, records = bytes(32), np.ones((1, 2, form.record_nbytes), np.uint8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with DiskTier(folder, "1 MiB") as tier:
    ...         tier.bind(form)
    ...         store = tier.prepare_store([key])
    ...         tier.store(store, Places.of_records(records))
    ...         tier.complete_store(store)
    ...     with DiskTier(folder, readonly=True) as tier:
    ...         tier.bind(form)
    ...         tier.longest_prefix([key])
    1
    1
    """

    name = "disk"
    writes: Literal["back", "through"] = "through"

    def __init__(
        self, path: str | os.PathLike[str], size: int | str | None = None, *, readonly: bool = False, sync: bool = True
    ) -> None:
        super().__init__(path, size, readonly=readonly, sync=sync)
        self._lost = 0  # a reader's blocks that the writer dropped while they were read

    @staticmethod
    def format_of(path: str | os.PathLike[str]) -> BlockFormat:
        """Return the format of the blocks in a folder."""
        return read_format(Path(path))

    def digests(self) -> list[bytes]:
        """Return the digests that are there, by last use, the latest first."""
        with self._lock, self._counted():
            opened = self._ready()
            if opened.writer is not None:
                return [*reversed(opened.writer.catalog.slots)]
            return opened.index.rows()[0][::-1]

    def pins(self) -> dict[str, list[bytes]]:
        """Return the names of pins, and the digests that each holds."""
        with self._lock, self._counted():
            found: dict[str, list[bytes]] = {}
            for name, digest in self._ready().index.pins():
                found.setdefault(name, []).append(digest)
            return found

    def problems(self) -> list[str]:
        """Return what is wrong with the index as a database; this looks at all of it."""
        with self._lock, self._counted():
            return self._ready().index.problems()

    def tidy(self) -> int:
        """Drop pins of blocks that are gone, and give back the room of rows that are; how many rows made no sense."""
        with self._lock, self._counted():
            return self._writing().tidy()

    def longest_prefix(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are there."""
        with self._using() as opened, self._counted():
            return 0 if opened is None else len(self._find(opened, keys))

    def prepare_load(self, keys: Sequence[bytes]) -> Load:
        """Hold the leading blocks that are there, whose slots say so themselves."""
        with self._using() as opened:
            if opened is None:
                self._stats.misses += len(keys)
                return Load(keys, 0)
            slots = self._find(opened, keys)
            if opened.writer is not None:
                opened.writer.catalog.hold(slots)
            load = Load(keys, 0, Reading(np.array(slots, np.int64), held=slots))
            try:
                with self._unlocked():
                    load.count, load.state.crcs = opened.slab.heads(load.state.slots, keys[: len(slots)])
            except BaseException:
                self.complete_load(load)
                raise
            load.state.right = load.count
            self._stats.misses += len(keys) - load.count
            if load.count < len(slots):
                self._wrong(opened, keys[load.count], slots[load.count])
            return load

    def load(self, load: Load, layers: range, places: Places) -> int:
        """Fill the places of some layers; how many leading blocks of the load are right in all layers so far."""
        state: Reading | None = load.state
        with self._using() as opened:
            if opened is None or state is None:
                return 0
            require_fit(opened.slab.form, places, layers, state.right)
            right, state.read = state.right, True
            with self._unlocked():
                right = opened.slab.read(layers, state.slots[:right], state.crcs[:right], places[:right])
            if right < state.right:
                self._stats.misses += state.right - right
                self._wrong(opened, load.keys[right], int(state.slots[right]))
            state.right = min(state.right, right)
            return right

    def complete_load(self, load: Load) -> None:
        """Let the blocks go; they count as used."""
        state: Reading | None = load.state
        load.state = None
        with self._lock:
            if state is None:
                return
            if state.read:
                self._stats.hits += state.right
            if self._opened is not None and self._opened.writer is not None:
                self._opened.writer.catalog.release(state.held)
                self._opened.writer.used(load.keys[: state.right])

    def prepare_store(self, keys: Sequence[bytes]) -> Store:
        """Make room for those that are not there; fewer where there is none, and none where this is a reader."""
        for key in keys:
            if not isinstance(key, bytes) or len(key) != DIGEST_SIZE:
                raise ValueError(f"{key!r} is not a digest: {DIGEST_SIZE} bytes")
        with self._using() as opened, self._counted():
            if opened is None or opened.writer is None:
                return Store(keys, np.empty(0, np.int64))
            writer = opened.writer
            wanted = writer.wanted(keys)
            writer.used(keys)
            slots = writer.room(len(wanted), set(keys))
            digests = [keys[number] for number in wanted[: len(slots)]]
            writer.pending.update(digests)
            return Store(keys, np.array(wanted[: len(slots)], np.int64), Writing(slots, digests))

    def store(self, store: Store, places: Places) -> None:
        """Write the bytes of the wanted blocks."""
        state: Writing | None = store.state
        with self._using() as opened, self._counted():
            if state is None or opened is None or opened.writer is None:
                return
            form, count = opened.slab.form, len(state.digests)
            require_fit(form, places, range(form.layers), count)
            if len(places.rows) != count:
                raise ValueError(f"places of {len(places.rows)} blocks; the store wants {count}")
            try:
                with self._unlocked():
                    opened.slab.write(state.slots, state.digests, places)
            except OSError as error:
                if is_full(error):
                    opened.writer.stop_growing()
                raise
            state.written = True

    def complete_store(self, store: Store) -> int:
        """Make the blocks durable and then visible; how many. Where it fails none is, and their room is given back."""
        state: Writing | None = store.state
        with self._using() as opened, self._counted():
            if state is None or not state.written or opened is None or opened.writer is None:
                self.abort_store(store)
                return 0
            writer = opened.writer
            try:
                self._sync_slab(opened, writer)
                writer.publish(state.digests, state.slots.tolist())
            except BaseException:
                self.abort_store(store)
                raise
            store.state = None
            writer.pending.difference_update(state.digests)
            self._stats.stored += len(state.digests)
            return len(state.digests)

    def _sync_slab(self, opened: Opened, writer: Writer) -> None:
        """Make durable what was written. After a failure nobody knows what is on the disk: no more is stored."""
        if not writer.healthy:
            raise TierError(f"{self.path} failed before; open the tier again")
        if self.sync:
            try:
                with self._unlocked():
                    opened.slab.sync()
            except OSError:
                writer.healthy = False
                raise

    def abort_store(self, store: Store) -> None:
        """Give the room back, instead of complete_store."""
        state: Writing | None = store.state
        store.state = None
        with self._lock:
            if state is not None and self._opened is not None and self._opened.writer is not None:
                self._opened.writer.pending.difference_update(state.digests)
                self._opened.writer.catalog.give(state.slots.tolist())

    def touch(self, keys: Sequence[bytes]) -> None:
        """Count these as used, where they are there; a reader's uses are not counted."""
        with self._lock:
            if self._opened is not None and self._opened.writer is not None:
                self._opened.writer.used(keys)

    def pin(self, keys: Sequence[bytes], name: str) -> int:
        """Keep these from eviction until unpin(name), in later processes too; how many are there."""
        with self._lock, self._counted():
            return self._writing().pin(keys, name)

    def unpin(self, name: str) -> int:
        """Undo pin; how many it held."""
        with self._lock, self._counted():
            return self._writing().unpin(name)

    def remove(self, keys: Sequence[bytes]) -> int:
        """Forget these; how many were there. Pins do not keep them; their bytes stay until the room is used again."""
        with self._lock, self._counted():
            writer = self._writing()
            there = [key for key in dict.fromkeys(keys) if key in writer.catalog.slots]
            writer.forget(there)
            return len(there)

    def stats(self) -> TierStats:
        """A snapshot."""
        with self._lock:
            found = replace(self._stats, more={"lost": self._lost})
            if self._opened is None:
                return found
            writer, slab = self._opened.writer, self._opened.slab
            if writer is None:
                with self._counted():
                    found.blocks = self._opened.index.count()
            else:
                found.blocks, found.evicted = len(writer.catalog.slots), writer.evicted
                found.errors += writer.failures
                found.more |= {"pinned": writer.catalog.pinned, "slots": writer.catalog.count}
                found.more |= {"free": writer.catalog.free, "healthy": int(writer.healthy)}
            found.nbytes = found.blocks * slab.slot_nbytes
            return found

    def _find(self, opened: Opened, keys: Sequence[bytes]) -> list[int]:
        """Slots of the leading keys that are there."""
        if opened.writer is not None:
            return opened.writer.catalog.leading(keys)
        found = itertools.takewhile(lambda slot: slot is not None, map(opened.index.find, keys))
        return [slot for slot in found if slot is not None]

    def _wrong(self, opened: Opened, key: bytes, slot: int) -> None:
        """A block is not what it should be: forget it, unless the writer dropped it under a reader's hands."""
        if opened.writer is not None:
            if opened.writer.catalog.slots.get(key) == slot:
                self._stats.corrupt += 1
                opened.writer.lose(key)
            return
        try:
            there = opened.index.find(key) == slot
        except TierError:
            there = True
        self._stats.corrupt += there
        self._lost += not there
