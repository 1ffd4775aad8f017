"""What a cache's tiers have of a prompt, fetched before it is admitted."""

import numpy as np
from numpy.typing import NDArray

from pagedcache.cache import KVCache
from pagedcache.serving._rows import Sequence

__all__ = ["is_loaded"]


def is_loaded(
    cache: KVCache, sequence: Sequence, tokens: NDArray[np.int32], namespace: str | None, *, wait: bool
) -> bool:
    """Whether all that tiers have of these tokens is in the pool; the first call asks for it.

    Parameters
    ----------
    wait : bool
        Wait for it, where nobody runs who could be served meanwhile. Tiers have time-outs of their own.
    """
    if not cache.has_tiers:
        return True
    if sequence.load is None:
        sequence.load = cache.prefetch([tokens], namespace=namespace)
    return sequence.load.wait(None if wait else 0)
