"""The tiers of one cache: told of what the prefix cache stores and loses, asked for what it lacks."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pagedcache._pool_records import PoolRecords
from pagedcache._tier_writer import TierWriter
from pagedcache.core import EventKind
from pagedcache.tiers import BlockFormat, Tier, store_blocks

if TYPE_CHECKING:
    from pagedcache._prefetch import PromptLoad
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
    lost : int
        Evicted blocks that a tier that writes back failed to take.
    """

    def __init__(self, cache: "Residency", tiers: Sequence[Tier]) -> None:
        assert cache.storage is not None
        self.form = BlockFormat.of(cache.spec)
        self.tiers = tuple(tiers)
        for tier in self.tiers:
            tier.bind(self.form)
        self.records = PoolRecords(cache.backend, cache.storage, self.form)
        self.under_way: set[PromptLoad] = set()
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
        gone = [digest for kind, digest, _ in _told(events) if kind == EventKind.REMOVED]
        for writer in self.writers:
            writer.withdraw(gone)
        for tier in self.tiers:
            with suppress(OSError):  # what cannot be reached cannot be found either
                tier.remove(gone)

    def _demote(self, tier: Tier, evicted: dict[bytes, int]) -> None:
        keys, blocks = list(evicted), np.array(list(evicted.values()), np.int32)
        try:
            store_blocks(tier, keys, self.records.look(blocks))
        except OSError:
            self.lost += len(keys)

    # -- inward ---------------------------------------------------------------------------------

    def stretches(self, keys: Sequence[bytes]) -> Iterator[tuple[Tier, int, int]]:
        """Which tier has which of the leading keys, from the first to the stop, as far as all are somewhere."""
        at = 0
        while at < len(keys):
            for tier in self.tiers:
                if found := tier.longest_prefix(keys[at:]):
                    yield tier, at, at + found
                    at += found
                    break
            else:
                return

    def close(self) -> None:
        """Finish what is under way, and close the tiers. Not under the lock."""
        self.loaders.shutdown()
        for writer in self.writers:
            writer.close()
        for tier in self.tiers:
            tier.close()


def _told(events: NDArray[Any]) -> Iterator[tuple[int, bytes, int]]:
    """Kind, digest and block of each event."""
    digests = [digest.tobytes() for digest in events["digest"]]
    return zip(events["kind"].tolist(), digests, events["block"].tolist(), strict=True)
