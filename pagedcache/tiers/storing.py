"""The three parts of a store, one after the other."""

from collections.abc import Sequence

from pagedcache.tiers.protocol import Places, Tier

__all__ = ["store_blocks"]


def store_blocks(tier: Tier, keys: Sequence[bytes], places: Places) -> int:
    """Store those of some blocks that a tier wants; how many became visible.

    Parameters
    ----------
    tier : Tier
    keys : sequence of bytes [n]
        Digests.
    places : Places
        Where their n records are.

    Raises
    ------
    OSError
        The tier could not; what it had room for is given back.
    """
    store = tier.prepare_store(keys)
    try:
        tier.store(store, places[store.wanted])
    except BaseException:
        tier.abort_store(store)
        raise
    return tier.complete_store(store)
