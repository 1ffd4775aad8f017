"""Tiers at the end of things: a cache that closes, a tier that has closed, a forked child, the interpreter's end."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import pytest
from tiered import Faulty, compute, fetched, prompt, tiered

from pagedcache.errors import CacheClosed, LoadFailed, TierError, ViewsOutstanding
from pagedcache.tiers import DiskTier, HostTier, SecondHit

fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


class Kept(Faulty):
    """A tier that outlives the cache, and stores only when told to."""

    def __init__(self):
        super().__init__()
        self.storing = threading.Event()
        self.storing.set()

    def store(self, store, places):
        self.entered.set()
        assert self.storing.wait(60)
        HostTier.store(self, store, places)

    def close(self):
        """What a restart finds."""


def test_what_is_evicted_while_the_cache_closes_is_not_stored():
    """Loads that wait for a thread evict blocks that wait to be stored: no others' bytes under their names (C04)."""
    tier = Kept()
    cache, rows = tiered(tier)
    few = [prompt(number, blocks=2) for number in (1, 2, 3)]
    compute(rows, *few)
    cache.flush()
    tier.storing.clear()
    tier.entered.clear()
    compute(rows, prompt(4, blocks=1))
    assert tier.entered.wait(60)
    compute(rows, prompt(5, blocks=6))
    tier.gate.clear()
    load = cache.prefetch(few)
    closer = threading.Thread(target=cache.close)
    closer.start()
    time.sleep(0.1)
    tier.gate.set()
    assert load.wait(60)
    tier.storing.set()
    closer.join(60)
    cache, rows = tiered(tier)
    with cache:
        fetched(rows, prompt(5, blocks=6), *few)


def test_flushing_waits_for_what_is_there_now():
    """A tier that is slower than what is published has always more to store."""
    tier = Faulty()
    cache, rows = tiered(tier)
    numbers = iter(range(2, 10_000))
    store, busy = tier.store, True

    def slower(*args):
        if busy:
            compute(rows, prompt(next(numbers)))
        store(*args)

    tier.store = slower
    compute(rows, prompt(1))
    assert cache.flush(10)
    busy = False
    cache.close()


def test_who_closes_too_waits():
    tier = Faulty()
    cache, rows = tiered(tier)
    tier.gate.clear()
    compute(rows, prompt(1))
    closers = [threading.Thread(target=cache.close) for _ in range(2)]
    for closer in closers:
        closer.start()
        closer.join(0.05)
    assert all(closer.is_alive() for closer in closers)
    tier.gate.set()
    for closer in closers:
        closer.join(60)
    with pytest.raises(CacheClosed):
        cache.stats()


def test_a_tier_that_fails_to_close_leaves_nothing_open():
    bad, good = Faulty(), Faulty()
    cache, rows = tiered(bad, good)
    compute(rows, prompt(1))
    threads = threading.active_count()

    def close():
        raise TierError("the disk is gone")

    bad.close = close
    with pytest.raises(TierError, match="the disk is gone"):
        cache.close()
    assert threading.active_count() == threads - 2
    with pytest.raises(TierError, match="closed"):
        good.prepare_store([b"k" * 32])
    cache.close()


def test_a_tier_closed_behind_the_caches_back_is_a_miss():
    """Two caches have one tier, and the first is closed; what is being read or written then is nobody's."""
    tier = HostTier("1 MiB")
    cache, rows = tiered(tier)
    other, others = tiered(tier)
    compute(rows, prompt(1), prompt(2), prompt(3))
    keys = list(tier._slots)
    load, store = tier.prepare_load(keys[:1]), tier.prepare_store([b"k" * 32])
    cache.close()
    block = other.pool.allocate(1)
    tier.load(load, range(2), other._tiers.records.places(block))
    tier.store(store, other._tiers.records.places(block))
    other.pool.decref(block)
    assert fetched(others, prompt(1), prompt(2), prompt(3)) == [0] * 3
    tier.bind(other._tiers.form)
    free = len(tier._free)
    tier.complete_load(load)
    assert tier.complete_store(store) == 0 and len(tier._free) == free and not tier._slots
    tier.abort_store(store)
    assert len(tier._free) == free and not tier._slots
    fetched(others, prompt(1), prompt(2), prompt(1))
    other.close()


def test_a_cache_that_nobody_closes_leaves_nothing(tmp_path):
    threads = threading.active_count()
    for _ in range(2):  # the folder is free again
        cache, rows = tiered(DiskTier(tmp_path / "blocks", "1 MiB"), steps_in_flight=2)
        fetched(rows, prompt(1), prompt(2), prompt(3), prompt(1))
        cache.begin_load(cache.admit([prompt(2)]).ids, [prompt(2)])
        cache.flush()
        gone = weakref.ref(cache)
        del cache, rows
        end = time.monotonic() + 30
        while (gone() is not None or threading.active_count() > threads) and time.monotonic() < end:
            gc.collect()
            time.sleep(0.01)
        assert gone() is None and threading.active_count() == threads


@fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_waits_for_no_load():
    tier = Faulty()
    cache, rows = tiered(tier, steps_in_flight=2)
    compute(rows, prompt(1))
    cache.flush()
    cache.evict(8)
    tier.gate.clear()
    ids = cache.admit([prompt(1)]).ids
    load, fetch = cache.begin_load(ids, [prompt(1)]), cache.prefetch([prompt(2)])
    step = cache.extend(ids, [1])
    pid = os.fork()
    if pid == 0:
        try:
            cache.commit(step, [1])
        except LoadFailed:
            cache.abandon(step)
            cache.cancel_load(load)
            rows.tokens[int(ids[0])] = []
            rows.run({int(ids[0]): prompt(1)})
            rows.verify()
            os._exit(0 if fetch.wait(5) else 1)
        finally:
            os._exit(1)
    end = time.monotonic() + 30
    while (status := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    if status == (0, 0):
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert status[1] == 0 and status != (0, 0)
    tier.gate.set()
    cache.abandon(step)
    cache.cancel_load(load)
    cache.close()


LATE = """
import threading
from tiered import Faulty, compute, prompt, tiered

def late():
    threading.main_thread().join()
    compute(rows, prompt(1))
    load = cache.prefetch([prompt(2)])
    begun = cache.begin_load(cache.admit([prompt(3)]).ids, [prompt(3)])
    assert load.wait(5) and begun is None
    cache.close()
    print(tier.stats().stored)

tier = Faulty()
cache, rows = tiered(tier, steps_in_flight=2)
threading.Thread(target=late).start()
"""


def test_threads_that_outlive_the_main_one_go_on(checkout):
    """The interpreter starts no thread of an executor then; generation does not notice."""
    run = subprocess.run(
        [sys.executable, "-c", LATE], cwd=checkout / "tests", capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout) == (0, "3\n"), run.stderr


@pytest.mark.parametrize("anew", [False, True])
def test_events_outlive_tiers(anew):
    """As where a cache could not be closed, or in a forked child."""
    cache, rows = tiered(HostTier("1 MiB"), events="digests")
    compute(rows, prompt(1))
    view = cache.storage.view(0)
    with pytest.raises(ViewsOutstanding):
        cache.close()
    compute(rows, prompt(2))
    assert cache.events(anew=anew)["kind"].tolist() == [3] * anew + [1] * 6 and len(cache.events()) == 0
    del view
    cache.close()


def test_what_is_told_anew_is_no_second_hit():
    tier = HostTier("1 MiB")
    tier.writes = "through"
    cache, rows = tiered(SecondHit(tier), events="digests")
    with cache:
        compute(rows, prompt(1))
        cache.flush()
        assert len(cache.events(anew=True)) == 4
        assert cache.flush() and cache.tier_stats()["host"].blocks == 0


def test_a_load_under_way_does_not_bring_back_what_is_forgotten():
    tier = Faulty()
    cache, rows = tiered(tier)
    with cache:
        for forget in (cache.reset, lambda: cache.invalidate(namespace=None)):
            compute(rows, prompt(1))
            cache.flush()
            cache.evict(8)
            tier.gate.clear()
            tier.entered.clear()
            load = cache.prefetch([prompt(1)])
            assert tier.entered.wait(60)
            compute(rows, prompt(1))  # which publishes the same blocks,
            assert forget() == 3
            tier.gate.set()
            assert load.wait(60) and cache.match([prompt(1)])[0] == 0
            assert cache.stats().free == 8
