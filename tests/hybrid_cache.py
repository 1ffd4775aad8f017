"""Caches with layer groups, and what their groups hold: the one place that knows how a KVCache tells it."""

import pytest

from pagedcache import KVCache


def hybrid_cache(spec, **options):
    """Make a cache; skips where a KVCache has full attention only."""
    try:
        return KVCache(spec, **options)
    except NotImplementedError as reason:
        pytest.skip(f"needs a KVCache with layer groups: {reason}")


def blocks_of_groups(cache):
    """Blocks that sequences hold, by group."""
    return cache.stats().group_blocks
