"""Tiers that raise what no tier may raise: it is told, and nothing else comes of it."""

import pytest
from tiered import compute, everything, fetched, prompt, tiered

from pagedcache.tiers import HostTier

METHODS = [
    "longest_prefix", "prepare_load", "load", "complete_load", "prepare_store", "store", "complete_store", "remove",
]  # fmt: skip


class Buggy(HostTier):
    """A tier of which one method has a bug."""

    def __init__(self, writes, method):
        super().__init__("1 MiB")
        self.writes = writes
        self._method = method

    def break_down(self):
        right = getattr(self, self._method)

        def wrong(*args):
            if self._method == "complete_load":
                right(*args)
            raise KeyError("a bug")

        setattr(self, self._method, wrong)


@pytest.mark.filterwarnings("ignore:tier 'host' has a bug")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("writes", ["back", "through"])
def test_generation_goes_on(writes, method):
    tier = Buggy(writes, method)
    cache, rows = tiered(tier, steps_in_flight=2)
    with cache:
        for number in range(4):
            compute(rows, prompt(number))
            cache.flush()
        before = everything(cache)
        tier.break_down()
        fetched(rows, *map(prompt, range(6)))
        ids = cache.admit([prompt(1)]).ids
        if load := cache.begin_load(ids, [prompt(1)]):
            cache.cancel_load(load)
        cache.release(ids)
        assert cache.flush(60)
        cache.reset()
        assert everything(cache) == before and cache.stats().free == 8
        cache.check()
        assert not +tier._readers


def test_bugs_are_told():
    tier = Buggy("back", "prepare_store")
    cache, rows = tiered(tier, events="digests")
    with cache:
        compute(rows, prompt(1))
        tier.break_down()
        with pytest.warns(RuntimeWarning, match="tier 'host' has a bug.*KeyError"):
            assert cache.evict(8) == 3
        assert cache._tiers.lost == 3 and len(cache.events()) == 6


@pytest.mark.filterwarnings("ignore:tier 'host' has a bug")
@pytest.mark.parametrize("method", ["close", "abort_store"])
def test_the_end_of_a_buggy_tier(method):
    tier = Buggy("through", method)
    cache, rows = tiered(tier)
    tier.break_down()
    if method == "abort_store":
        tier.store = None
    compute(rows, prompt(1))
    cache.flush()
    if method == "close":
        with pytest.raises(KeyError, match="a bug"):
            cache.close()
    cache.close()
    assert cache._closed
