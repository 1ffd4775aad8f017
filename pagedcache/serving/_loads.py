"""What a cache's tiers have of a prompt, fetched before it is admitted."""

import numpy as np
from numpy.typing import NDArray

from pagedcache._prefetch import Prefetch
from pagedcache.cache import KVCache
from pagedcache.serving._rows import Sequence

__all__ = ["Loads"]


class Loads:
    """Loads of one engine, one at a time: it takes the blocks that were found to be there for whom it is for."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._last: Prefetch | None = None

    def are_done(self, sequence: Sequence, tokens: NDArray[np.int32], namespace: str | None, *, wait: bool) -> bool:
        """Whether all that tiers have of these tokens is in the pool; the first call asks for it.

        Where it cannot be admitted then, this asks again: what was loaded may have been evicted.

        Parameters
        ----------
        wait : bool
            Wait for it, where nobody runs who could be served meanwhile. Tiers have time-outs of their own.
        """
        if not self._cache.has_tiers:
            return True
        timeout = None if wait else 0
        if sequence.load is None:
            if self._last is not None and not self._last.wait(timeout):
                return False  # whoever it was for has left the line
            self._last = sequence.load = self._cache.prefetch([tokens], namespace=namespace)
        if not sequence.load.wait(timeout):
            return False
        sequence.load = None
        return True

    def wait(self, *, unless: bool = False) -> None:
        """Wait until no load holds blocks any more, unless somebody runs who could be served meanwhile."""
        if not unless and self._last is not None:
            self._last.wait()

    def cut_short(self) -> bool:
        """Have a load give its blocks back, for those that run; whether there was one."""
        if self._last is None or self._last.done:
            return False
        self._last.cancel()
        return self._last.wait()

    def give_up(self, sequence: Sequence) -> None:
        """Nobody waits for it any more."""
        if sequence.load is not None:
            sequence.load.cancel()
