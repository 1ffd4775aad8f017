"""Blocks on their way from the pool to one tier that writes through, on a thread of their own."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from pagedcache._pool_records import PoolRecords
from pagedcache._tier_bugs import tell_bug
from pagedcache.tiers import Places, Tier, store_blocks

__all__ = ["TierWriter"]

GROUP_BYTES = 32 << 20  # that are copied aside and stored at a time: enough for one sync of a disk to be cheap
GROUP_BLOCKS = 128


class TierWriter:
    """Stores what it is told of, in order, as fast as the tier takes it.

    Until its turn comes a block is only remembered, not held: what is evicted before is not stored. Then it is copied
    aside under the cache's lock, so that a slow tier never keeps blocks from sequences.

    Parameters
    ----------
    tier : Tier
    lock : callable
        The cache's lock of now, which guards all that is here.
    """

    def __init__(self, tier: Tier, records: PoolRecords, block_nbytes: int, lock: Callable[[], Any]) -> None:
        self.tier = tier
        self.pending: dict[bytes, int] = {}  # digest -> block, published and not yet stored
        self.failures = 0  # blocks that the tier failed to store
        self.missed = 0  # blocks that were evicted before their turn
        self._records, self._lock = records, lock
        self._at_once = max(1, min(GROUP_BLOCKS, GROUP_BYTES // block_nbytes))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"pagedcache-{tier.name}")  # starts when first used
        self._job: Future[None] | None = None
        self._group: tuple[list[bytes], Places] = ([], Places([], np.empty(0, np.int64)))
        self._storing: set[bytes] = set()  # of the group that is being stored
        self._group_done = threading.Event()  # of this group
        self.withdrawn: set[bytes] = set()  # of these, what must not be found afterwards

    def forget(self, digest: bytes) -> None:
        """The block can no longer be found."""
        self.missed += self.pending.pop(digest, None) is not None

    def move(self, digest: bytes, block: int) -> None:
        """The content is in another block from here on."""
        if digest in self.pending:
            self.pending[digest] = block

    def wake(self) -> None:
        """There may be something to do; under the lock."""
        if self.pending and self._job is None:
            with suppress(RuntimeError):  # closed, or the interpreter is about to end
                self._job = self._thread.submit(self._run)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until what is left now is stored, whatever comes meanwhile; False where not. Not under the lock."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock():
            left = self._storing.union(self.pending)
        while True:
            with self._lock():
                left = {key for key in left if key in self.pending or key in self._storing}
                done, idle = self._group_done, self._job is None
            if not left or idle:
                return not left
            if not done.wait(None if end is None else max(0.0, end - time.monotonic())):
                return False

    def close(self) -> None:
        """Store what is left, and end the thread. Not under the lock."""
        try:
            self.flush()
        finally:
            self._thread.shutdown()
        if self.pending:  # where threads can no longer be started, as the interpreter is about to end
            self._run()

    def withdraw(self, keys: Sequence[bytes]) -> None:
        """These must not be stored; under the lock."""
        for key in keys:
            self.pending.pop(key, None)
        self.withdrawn.update(self._storing.intersection(keys))

    def _run(self) -> None:
        try:
            while self._take():
                self.failures += self._store()
        finally:
            with self._lock():
                self._job = None
                self._storing = set()
                self._group_done.set()
                self._group_done = threading.Event()
                if self.pending and not sys.exc_info()[0]:
                    self.wake()

    def _take(self) -> bool:
        """Copy the next blocks aside; whether there were any."""
        with self._lock():
            if self.withdrawn:
                try:
                    self.tier.remove(list(self.withdrawn))
                except Exception as error:  # what cannot be reached cannot be found either
                    tell_bug(self.tier, error)
                finally:
                    self.withdrawn.clear()
            keys = list(islice(self.pending, self._at_once))
            blocks = [self.pending.pop(key) for key in keys]
            self._storing = set(keys)
            self._group_done.set()
            self._group_done = threading.Event()
            if keys:
                self._group = keys, self._records.read(np.array(blocks, np.int32))
            return bool(keys)

    def _store(self) -> int:
        """Store what was copied; how many blocks the tier failed to take."""
        keys, places = self._group
        try:
            store_blocks(self.tier, keys, places)
        except Exception as error:  # the next may do, and what is not stored is computed again
            tell_bug(self.tier, error)
            return len(keys)
        return 0
