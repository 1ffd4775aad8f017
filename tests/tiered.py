"""Caches with tiers, in which a wrong byte is seen; tiers that fail."""

import threading

import numpy as np
from kv_drive import Rows, make_cache

from pagedcache.errors import TierError
from pagedcache.tiers import HostTier

BLOCK = 4  # tokens


def prompt(number, blocks=3):
    """Tokens of some full blocks and one more, unlike those of any other number."""
    return [(100 * number + token) % 499 for token in range(blocks * BLOCK + 1)]


def tiered(*tiers, num_blocks=8, **options):
    """A cache with tiers, and rows that know what must be in it."""
    cache = make_cache(num_blocks, fingerprint=b"kv drive", tiers=tiers, **options)
    return cache, Rows(cache)


def compute(rows, *prompts):
    """Admit each prompt, write K/V of what is not cached, verify all of it, release; what was cached."""
    cached = []
    for tokens in prompts:
        cached.append(int(rows.cache.match([tokens])[0]))
        sid = rows.admit(tokens)
        rows.verify(sid)
        rows.release(sid)
    return cached


def fetched(rows, *prompts, **options):
    """Prefetch and compute again: every byte that a tier gave is compared; what was cached."""
    cached = []
    for tokens in prompts:
        assert rows.cache.prefetch([tokens], **options).wait(60)
        cached += compute(rows, tokens)
    return cached


class Faulty(HostTier):
    """A host tier that writes through, and fails or waits when told to."""

    writes = "through"

    def __init__(self, memory="1 MiB"):
        super().__init__(memory)
        self.failing: set[str] = set()
        self.gate = threading.Event()  # loads and stores pass only while it is set
        self.gate.set()
        self.entered = threading.Event()

    def _pass(self, method):
        self.entered.set()
        assert self.gate.wait(60)
        if method in self.failing:
            raise TierError(f"{method} fails")

    def longest_prefix(self, keys):
        if "longest_prefix" in self.failing:
            raise TierError("longest_prefix fails")
        return super().longest_prefix(keys)

    def prepare_load(self, keys):
        if "prepare_load" in self.failing:
            raise TierError("prepare_load fails")
        return super().prepare_load(keys)

    def load(self, load, layers, places):
        right = super().load(load, layers, places)
        self._pass("load")
        if "wrong" in self.failing and right:
            for into in places.layers[0]:
                into[places.rows[right - 1]] = 77
            return right - 1
        return right

    def store(self, store, places):
        self._pass("store")
        super().store(store, places)

    def complete_store(self, store):
        if "complete_store" in self.failing:
            self.abort_store(store)
            raise TierError("complete_store fails")
        return super().complete_store(store)


def everything(cache):
    """Counts that must be as before when a load came to nothing."""
    stats = cache.stats()
    return stats.used, stats.sequences, int(np.sum(cache.pool.refcounts()))
