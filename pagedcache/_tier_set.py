"""The tiers of one cache: told of what the prefix cache stores and loses, asked for what it lacks."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pagedcache._pool_records import PoolRecords
from pagedcache._tier_bugs import tell_bug
from pagedcache._tier_search import TierSearch
from pagedcache._tier_writer import TierWriter
from pagedcache.core import EventKind
from pagedcache.tiers import BlockFormat, Tier, TierStats, store_blocks

if TYPE_CHECKING:
    from pagedcache._prefetch import Prefetch, PromptLoad
    from pagedcache._residency import Residency

__all__ = ["TierSet"]

LOADERS = 2  # threads, and so loads at a time


class TierSet:
    """Tiers in the order in which they are asked, the fastest first.

    Parameters
    ----------
    cache : Residency
        Its storage, its lock and its table.
    tiers : sequence of Tier

    Attributes
    ----------
    under_way : set of PromptLoad
        Loads that have blocks of the pool.
    told : set of Prefetch
        Who may be waiting.
    withdrawals : int
        How often something was forgotten; what was on its way then is not published.
    lost : int
        Evicted blocks that a tier that writes back failed to take.
    """

    def __init__(self, cache: "Residency", tiers: Sequence[Tier]) -> None:
        assert cache.storage is not None
        self.form = BlockFormat.of(cache.spec)
        self.tiers = tuple(tiers)
        try:
            for tier in self.tiers:
                tier.bind(self.form)
        except BaseException:  # those that were bound are nobody's
            for tier in self.tiers:
                with suppress(OSError):
                    tier.close()
            raise
        self.records = PoolRecords(cache.backend, cache.storage, self.form)
        self.under_way: set[PromptLoad] = set()
        self.told: weakref.WeakSet[Prefetch] = weakref.WeakSet()
        self.withdrawals = 0
        self.lost = 0
        self._back = [tier for tier in tiers if tier.writes == "back"]
        self.writers = [
            TierWriter(tier, self.records, self.form.block_nbytes, lambda: cache._lock)
            for tier in tiers
            if tier.writes == "through"
        ]
        self.loaders = ThreadPoolExecutor(LOADERS, thread_name_prefix="pagedcache-load")  # starts when first used

    # -- outward, under the cache's lock ----------------------------------------------------------

    def see(self, events: NDArray[Any]) -> None:
        """Follow what was stored, moved and removed, in order; evicted blocks are still as they were."""
        evicted: dict[bytes, int] = {}
        for kind, digest, block in _told(events):
            if kind == EventKind.REMOVED:
                evicted[digest] = block
            for writer in self.writers:
                if kind == EventKind.STORED:
                    writer.pending[digest] = block
                elif kind == EventKind.MOVED:
                    writer.move(digest, block)
                elif kind == EventKind.REMOVED:
                    writer.forget(digest)
                else:
                    writer.pending.clear()
        for tier in self._back if evicted else ():
            self._demote(tier, evicted)
        for writer in self.writers:
            writer.wake()

    def forget(self, events: NDArray[Any]) -> None:
        """What was removed must not be found again, in no tier."""
        self.withdrawals += 1
        gone = [digest for kind, digest, _ in _told(events) if kind == EventKind.REMOVED]
        for writer in self.writers:
            writer.withdraw(gone)
        for tier in self.tiers:
            try:
                tier.remove(gone)
            except Exception as error:  # what cannot be reached cannot be found either
                tell_bug(tier, error)

    def _demote(self, tier: Tier, evicted: dict[bytes, int]) -> None:
        keys, blocks = list(evicted), np.array(list(evicted.values()), np.int32)
        try:
            store_blocks(tier, keys, self.records.look(blocks))
        except Exception as error:
            self.lost += len(keys)
            tell_bug(tier, error)

    # -- inward ---------------------------------------------------------------------------------

    def start(self, job: Callable[..., None], *args: Any) -> Future[None] | None:
        """Have a thread do it; None where the cache is being closed, or the interpreter is about to end."""
        try:
            return self.loaders.submit(job, *args)
        except RuntimeError:
            return None

    def search(self, keys: Sequence[bytes]) -> TierSearch:
        """Look for keys, as far as none is withdrawn."""
        withdrawn = set().union(*(writer.withdrawn for writer in self.writers))
        return TierSearch(self.tiers, keys[: next((n for n, key in enumerate(keys) if key in withdrawn), len(keys))])

    def stats(self) -> dict[str, TierStats]:
        """Of each tier, by names that differ; among ``more`` what was lost on the way to it."""
        told: dict[str, TierStats] = {}
        lost = {id(writer.tier): {"evicted": writer.missed, "failed": writer.failures} for writer in self.writers}
        for tier in self.tiers:
            same = [each.name for each in self.tiers[: len(told)]].count(tier.name)
            stats = tier.stats()
            stats.more |= lost.get(id(tier), {"failed": self.lost})
            told[f"{tier.name} {same + 1}" if same else tier.name] = stats
        return told

    def close(self) -> None:
        """Finish stores, give up loads, and close the tiers, all of them even if some fail. Not under the lock."""
        for told in tuple(self.told):
            told.cancel()
        self.loaders.shutdown()
        errors = []
        for close in [*(writer.close for writer in self.writers), *(tier.close for tier in self.tiers)]:
            try:
                close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _told(events: NDArray[Any]) -> Iterator[tuple[int, bytes, int]]:
    """Kind, digest and block of each event."""
    digests = [digest.tobytes() for digest in events["digest"]]
    return zip(events["kind"].tolist(), digests, events["block"].tolist(), strict=True)
