"""Store only what was wanted before: three in four blocks of real traces are never used again."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pagedcache.tiers.protocol import Store, Tier

__all__ = ["SecondHit"]


class SecondHit:
    """A tier that takes a block when it is offered the second time.

    A prompt's blocks are offered when they are published or, by a tier that writes back, when they are evicted. Where
    a block comes again it was computed again, so somebody did want it.

    Parameters
    ----------
    tier : Tier
    remember : int
        Blocks offered last that are remembered, 8 bytes and some Python each.

    Examples
    --------
    >>> from pagedcache.tiers import HostTier
    >>> tier = SecondHit(HostTier("1 MiB"))
    >>> tier.name
    'host'
    """

    def __init__(self, tier: Tier, remember: int = 1_000_000) -> None:
        if remember < 1:
            raise ValueError(f"remember is {remember}; it must be 1 or more")
        self._tier = tier
        self._remember = remember
        self._seen: dict[bytes, None] = {}  # the beginnings of digests, the oldest first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)

    def prepare_store(self, keys: Sequence[bytes]) -> Store:
        """Make room for those that are not there and were offered before; remember the others."""
        again = [number for number, key in enumerate(keys) if self._seen.pop(key[:8], self) is None]
        for key in keys:
            self._seen[key[:8]] = None
        while len(self._seen) > self._remember:
            self._seen.pop(next(iter(self._seen)), None)
        store = self._tier.prepare_store([keys[number] for number in again])
        return Store(keys, np.array(again, np.int64)[store.wanted], store)

    def store(self, store: Store, places: Any) -> None:
        """Take the bytes of the wanted blocks."""
        self._tier.store(store.state, places)

    def complete_store(self, store: Store) -> int:
        """Make them visible; how many."""
        return self._tier.complete_store(store.state)

    def abort_store(self, store: Store) -> None:
        """Give the room back."""
        self._tier.abort_store(store.state)
