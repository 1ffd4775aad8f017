"""Blocks of prompts on their way from tiers into the pool, before anybody is admitted.

They are a caller's blocks of the pool until all of a stretch is there and verified; then the index adopts them, and
whoever asks next finds them like any other. So a load never touches a sequence, and nothing half loaded is ever found.
"""

import threading
from collections.abc import Sequence as ABCSequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pagedcache._tier_set import Stretch, TierSet
from pagedcache.digests import prompt_digests
from pagedcache.errors import CacheClosed, OutOfBlocks
from pagedcache.keys import Key, Namespace
from pagedcache.tiers import Places

if TYPE_CHECKING:
    from pagedcache._tiering import Tiering

__all__ = ["Prefetch"]

AT_ONCE = 32  # blocks between two looks at whether the load is still wanted


class Prefetch:
    """Loads that `KVCache.prefetch` has begun.

    Attributes
    ----------
    loaded : int
        Blocks that were loaded and can be found, so far.
    failed : int
        Blocks that a tier said it had and did not give, so far.
    """

    def __init__(self) -> None:
        self.loaded = 0
        self.failed = 0
        self._jobs: list[Future[None]] = []
        self._cancelled = threading.Event()

    def __repr__(self) -> str:
        return f"Prefetch({'done' if self.done else 'under way'}, {self.loaded} blocks loaded)"

    @property
    def done(self) -> bool:
        """Whether all that could be loaded is there."""
        return all(job.done() for job in self._jobs)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for that, at most so many seconds; whether it is done.

        An error of a tier is none here: what it did not give is computed.
        """
        done, late = wait(self._jobs, timeout)
        for job in done:
            job.result()
        return not late

    def cancel(self) -> None:
        """Load no more. Blocks come back as soon as the tier's call that is under way returns."""
        self._cancelled.set()


class PromptLoad:
    """The load of one prompt, on a thread of the tiers."""

    def __init__(
        self,
        cache: "Tiering",
        tiers: TierSet,
        told: Prefetch,
        prompt: NDArray[np.int32],
        namespace: Namespace,
        keys: ABCSequence[Key] | None,
    ) -> None:
        self._cache, self._tiers, self._told = cache, tiers, told
        self._prompt = prompt
        self._about: dict[str, Any] = {"namespace": namespace, "keys": keys}

    def run(self) -> None:
        """Load block after block behind what is cached, until a tier has no more or gives none."""
        spec, about = self._cache.spec, self._about
        full = (len(self._prompt) - 1) // spec.block_size
        prompt = self._prompt[: full * spec.block_size]
        if full < 1 or self._told._cancelled.is_set():
            return
        digests = prompt_digests(prompt, spec.block_size, fingerprint=spec.fingerprint or b"", **about)
        with self._cache._open():
            hold, cached = self._cache.sequences.hold(prompt, **about)
        try:
            for stretch in self._tiers.stretches(digests[cached:]):
                for first in range(stretch.first, stretch.stop, AT_ONCE):
                    part = Stretch(stretch.tier, first, min(stretch.stop, first + AT_ONCE))
                    hold, whole = self._load(digests[cached:], part, cached, prompt, hold)
                    if not whole or self._told._cancelled.is_set():
                        return
        except (OSError, OutOfBlocks):  # a tier that fails has nothing; a pool that is full has no room
            self._told.failed += 1
        finally:
            with self._cache._lock:
                self._cache.sequences.let_go(hold)

    def _load(
        self, digests: ABCSequence[bytes], part: Stretch, cached: int, prompt: NDArray[np.int32], hold: int
    ) -> tuple[int, bool]:
        """Load blocks and publish them; the hold on all that is published, and whether all of them came."""
        cache, count = self._cache, part.stop - part.first
        with cache._open():
            blocks = cache.pool.allocate(min(count, cache.pool.num_free))
            cache._settle()  # what was evicted for them goes to the tiers while it is still there
        right = 0
        try:
            right = self._fill(part, digests, blocks)
        finally:
            with cache._lock:
                if cache._closed:
                    raise CacheClosed("the cache was closed")
                cache._cover()
                self._told.loaded += cache.sequences.adopt(
                    prompt, blocks[:right], first=cached + part.first, **self._about
                )
                cache.pool.decref(blocks[right:])
                before, (hold, _) = hold, cache.sequences.hold(prompt, **self._about)
                cache.sequences.let_go(before)
                cache._settle()
        self._told.failed += len(blocks) - right
        return hold, right == count

    def _fill(self, part: Stretch, digests: ABCSequence[bytes], blocks: NDArray[np.int32]) -> int:
        """Have the tier fill blocks of the pool; how many leading ones are right."""
        records = self._tiers.records
        load = part.tier.prepare_load(digests[part.first : part.first + len(blocks)])
        try:
            blocks = blocks[: load.count]
            layers = range(self._tiers.form.layers)
            if records.are_direct:
                return part.tier.load(load, layers, records.places(blocks))
            beside = records.empty(len(blocks))
            right = part.tier.load(load, layers, Places.of_records(beside))
        finally:
            part.tier.complete_load(load)
        with self._cache._open():
            records.write(blocks[:right], beside[:right])
        return right
