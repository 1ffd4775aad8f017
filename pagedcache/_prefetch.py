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

from pagedcache._tier_bugs import tell_bug
from pagedcache._tier_set import TierSet
from pagedcache.digests import prompt_digests
from pagedcache.errors import OutOfBlocks
from pagedcache.keys import Key, Namespace
from pagedcache.tiers import Places, Tier

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
    """The load of one prompt, on a thread of the tiers.

    Attributes
    ----------
    blocks : int32 [n]
        Those that are being filled.
    hold : int
        Keeps what is published of the prompt; 0 before and afterwards.
    """

    def __init__(
        self,
        cache: "Tiering",
        tiers: TierSet,
        told: Prefetch,
        prompt: NDArray[np.int32],
        namespace: Namespace,
        keys: ABCSequence[Key] | None,
    ) -> None:
        self.blocks = np.empty(0, np.int32)
        self.hold = 0
        full = max(0, len(prompt) - 1) // cache.spec.block_size  # something is left to compute
        self._prompt = prompt[: full * cache.spec.block_size]
        self._about: dict[str, Any] = {"namespace": namespace, "keys": keys}
        self._cache, self._tiers, self._told = cache, tiers, told

    def run(self) -> None:
        """Load block after block behind what is cached, until a tier has no more or gives none."""
        if not len(self._prompt) or self._told._cancelled.is_set():
            return
        spec = self._cache.spec
        digests = prompt_digests(self._prompt, spec.block_size, fingerprint=spec.fingerprint or b"", **self._about)
        with self._cache._open():
            self._withdrawals = self._tiers.withdrawals
            self.hold, cached = self._cache.sequences.hold(self._prompt, **self._about)
            self._tiers.under_way.add(self)
        try:
            self._load_all(digests, cached)
        except OutOfBlocks:  # others were faster
            self._told.failed += 1
        except Exception as error:  # none has it, and one cannot be asked
            self._told.failed += 1
            tell_bug(self._tiers.tiers[0], error)
        finally:
            with self._cache._lock:
                self._cache.sequences.let_go(self.hold)
                self.hold = 0
                self._tiers.under_way.discard(self)

    def _load_all(self, digests: ABCSequence[bytes], cached: int) -> None:
        search = self._tiers.search(digests[cached:])
        while found := search.next():
            tier, stop = found
            while search.at < stop:
                begin = cached + search.at
                wanted = digests[begin : min(cached + stop, begin + AT_ONCE)]
                room, right = self._load(tier, wanted, begin)
                search.at += right
                if self._told._cancelled.is_set() or room < len(wanted):
                    return
                if right < room:  # another tier may have them too
                    search.pass_over(tier)
                    break

    def _load(self, tier: Tier, digests: ABCSequence[bytes], behind: int) -> tuple[int, int]:
        """Load blocks behind those that are published, and publish them; for how many there was room, how many came."""
        cache, right = self._cache, 0
        with cache._open():
            self.blocks = cache.pool.allocate(min(len(digests), cache.pool.num_free))
            cache._settle()  # what was evicted for them goes to the tiers while it is still there
        try:
            right = self._fill(tier, digests[: len(self.blocks)])
        except Exception as error:  # a tier that fails has nothing
            tell_bug(tier, error)
        finally:
            with cache._lock:
                cache._cover()
                if self._withdrawals != self._tiers.withdrawals:
                    right = 0  # it may have been forgotten since, and must not come back
                blocks, self.blocks = self.blocks, self.blocks[:0]
                cache.pool.decref(blocks[right:])
                self._told.loaded += cache.sequences.adopt(self._prompt, blocks[:right], first=behind, **self._about)
                before = self.hold
                self.hold, _ = cache.sequences.hold(self._prompt, **self._about)
                cache.sequences.let_go(before)
                cache._settle()
        self._told.failed += len(blocks) - right
        return len(blocks), right

    def _fill(self, tier: Tier, digests: ABCSequence[bytes]) -> int:
        """Have the tier fill the blocks; how many leading ones are right."""
        records, layers = self._tiers.records, range(self._tiers.form.layers)
        load = tier.prepare_load(digests)
        try:
            blocks = self.blocks[: load.count]
            if records.are_direct:
                return tier.load(load, layers, records.places(blocks))
            beside = records.empty(len(blocks))
            right = tier.load(load, layers, Places.of_records(beside))
        finally:
            tier.complete_load(load)
        with self._cache._open():
            records.write(blocks[:right], beside[:right])
        return right
