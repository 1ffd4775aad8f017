"""The verbs of KVCache that move no bytes: SequenceTable's, under the cache's lock."""

import threading
from collections.abc import Sequence as ABCSequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.core import Admission, CacheStats, SequenceTable, Step
from pagedcache.errors import CacheClosed
from pagedcache.keys import Key, Namespace
from pagedcache.sequence import Sequence

__all__ = ["Bookkeeping"]

Prompts = ABCSequence[ArrayLike] | NDArray[np.integer[Any]]
Border = Namespace | bytes | str | None
Keys = ABCSequence[ABCSequence[Key] | None] | None


class _Open:
    """The cache's lock, held; CacheClosed where the cache was closed before, or while waiting for it."""

    __slots__ = ("_cache", "_lock")

    def __init__(self, cache: "Bookkeeping") -> None:
        self._cache, self._lock = cache, cache._lock  # the lock of now: a forked child gets another

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._cache._closed:
            self._lock.release()
            raise CacheClosed("the cache is closed; make a new one")

    def __exit__(self, *_: object) -> None:
        try:
            self._cache._settle()
        finally:
            self._lock.release()


class Bookkeeping:
    """Base of KVCache: whatever concerns the table alone."""

    sequences: SequenceTable
    _lock: threading.RLock
    _closed: bool

    def _open(self) -> "_Open":
        return _Open(self)

    def _settle(self) -> None:
        """What has to follow every verb, within the lock."""

    # -- prompts ----------------------------------------------------------------------------------

    def admit(
        self,
        prompts: Prompts,
        *,
        namespace: Border = None,
        keys: Keys = None,
        reserve: int | ArrayLike = 0,
        pads: ArrayLike | None = None,
        priority: int = 0,
    ) -> Admission:
        """Match, pin and allot, prompt by prompt; see `SequenceTable.admit`."""
        with self._open():
            return self.sequences.admit(
                prompts, namespace=namespace, keys=keys, reserve=reserve, pads=pads, priority=priority
            )

    def match(
        self, prompts: Prompts, *, namespace: Border = None, keys: Keys = None, by_group: bool = False
    ) -> NDArray[np.int32]:
        """Leading tokens of each prompt that are cached; changes nothing. See `SequenceTable.match`."""
        with self._open():
            return self.sequences.match(prompts, namespace=namespace, keys=keys, by_group=by_group)

    # -- steps ------------------------------------------------------------------------------------

    @property
    def open_steps(self) -> tuple[Step, ...]:
        """Steps neither committed nor abandoned, oldest first, for whoever has lost one."""
        with self._open():
            return self.sequences.open_steps

    def can_extend(
        self, ids: ArrayLike, counts: int | ArrayLike, *, depths: ArrayLike | None = None, cascade: bool = False
    ) -> bool:
        """Whether `extend` with the same arguments would find enough blocks now."""
        with self._open():
            return self.sequences.can_extend(ids, counts, depths=depths, cascade=cascade)

    # -- whole sequences --------------------------------------------------------------------------

    def fork(self, ids: ArrayLike, n: int = 1, at: int | ArrayLike | None = None) -> NDArray[np.int64]:
        """`n` new sequences per id that share its blocks, int64 [ids, n]; see `SequenceTable.fork`."""
        with self._open():
            return self.sequences.fork(ids, n, at)

    def reorder(self, ids: ArrayLike, parents: ArrayLike) -> None:
        """Beam step: sequence i goes on from where ``ids[parents[i]]`` is; see `SequenceTable.reorder`."""
        with self._open():
            self.sequences.reorder(ids, parents)

    def truncate(self, ids: ArrayLike, positions: int | ArrayLike) -> int:
        """Roll back; the number of blocks that became usable. See `SequenceTable.truncate`."""
        with self._open():
            return self.sequences.truncate(ids, positions)

    def cover(self, fence: int) -> None:
        """Blocks dropped from here on wait for `fence`; a KVCache with storage does this by itself."""
        with self._open():
            self.sequences.cover(fence)

    def retire(self, fence: int) -> int:
        """The work up to `fence` is done; the number of blocks that became usable. See `SequenceTable.retire`."""
        with self._open():
            return self.sequences.retire(fence)

    def sequence(self, handle: int) -> Sequence:
        """A look at one sequence: its length, position and block table."""
        with self._open():
            self.sequences.position(handle)
            return Sequence(self.sequences, int(handle))

    # -- the prefix cache -------------------------------------------------------------------------

    def pin(self, prompts: Prompts, name: str, *, namespace: Border = None, keys: Keys = None) -> int:
        """Keep what is published of these prompts from eviction; the number of blocks. See `SequenceTable.pin`."""
        with self._open():
            return self.sequences.pin(prompts, name, namespace=namespace, keys=keys)

    def unpin(self, name: str) -> int:
        """Undo `pin`; the number of blocks that became usable."""
        with self._open():
            return self.sequences.unpin(name)

    def evict(self, n_blocks: int) -> int:
        """Give up at most so many idle cached blocks; how many went. See `SequenceTable.evict`."""
        with self._open():
            return self.sequences.evict(n_blocks)

    def demote(self, prompts: Prompts, *, namespace: Border = None, keys: Keys = None) -> int:
        """Let what only these prompts use go first; the number of blocks. See `SequenceTable.demote`."""
        with self._open():
            return self.sequences.demote(prompts, namespace=namespace, keys=keys)

    def reset(self) -> int:
        """Forget the whole prefix cache, pins included; the number of blocks. See `SequenceTable.reset`."""
        with self._open():
            return self.sequences.reset()

    def invalidate(self, *, namespace: Border) -> int:
        """Forget what a namespace has published; the number of blocks. See `SequenceTable.invalidate`."""
        with self._open():
            return self.sequences.invalidate(namespace=namespace)

    def events(self, *, anew: bool = False) -> NDArray[Any]:
        """What was stored and removed since the last call; see `SequenceTable.events`."""
        with self._open():
            return self.sequences.events(anew=anew)

    # -- looking ----------------------------------------------------------------------------------

    def stats(self) -> CacheStats:
        """Counters and sizes, as a snapshot."""
        with self._open():
            return self.sequences.stats()

    def check(self) -> None:
        """Audit every invariant of the bookkeeping; AssertionError names the first that is broken."""
        with self._open():
            self.sequences.check()
