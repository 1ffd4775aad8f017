"""Tiers that fail, hang, lie or are slow, and cancelled loads: a miss at worst, and every block comes back once."""

import os
import random
import threading
import time

import pytest
from tiered import Faulty, compute, everything, fetched, prompt, tiered

from pagedcache.errors import CacheClosed
from pagedcache.testing import DelayedBackend
from pagedcache.tiers import DiskTier, HostTier


@pytest.fixture
def faulty():
    """A cache of eight blocks whose tier has prompts 1 and 2 and the pool neither; the rows; the tier."""
    tier = Faulty()
    cache, rows = tiered(tier)
    compute(rows, prompt(1), prompt(2))
    cache.flush()
    cache.evict(8)
    tier.entered.clear()
    yield cache, rows, tier
    tier.gate.set()
    tier.failing.clear()
    if not cache._closed:
        cache.check()
    cache.close()


@pytest.mark.parametrize("method", ["longest_prefix", "prepare_load", "load"])
def test_a_tier_that_fails_is_a_miss(faulty, method):
    cache, rows, tier = faulty
    before = everything(cache)
    tier.failing.add(method)
    load = cache.prefetch([prompt(1)])
    assert load.wait(60) and (load.loaded, load.failed > 0) == (0, True)
    assert everything(cache) == before and cache.stats().free == 8
    assert compute(rows, prompt(1)) == [0]


@pytest.mark.parametrize("how", ["longest_prefix", "prepare_load", "load", "wrong"])
def test_what_a_tier_does_not_give_the_next_one_gives(tmp_path, how):
    near, far = Faulty(), DiskTier(tmp_path / "blocks", "1 MiB")
    cache, rows = tiered(near, far)
    with cache:
        compute(rows, prompt(1))
        cache.flush()
        cache.evict(8)
        near.failing.add(how)
        load = cache.prefetch([prompt(1)])
        assert load.wait(60) and load.loaded == 3
        assert compute(rows, prompt(1)) == [12]
        cache.check()


def test_wrong_bytes_are_a_shorter_hit(faulty):
    cache, rows, tier = faulty
    tier.failing.add("wrong")
    load = cache.prefetch([prompt(1)])
    assert load.wait(60) and (load.loaded, load.failed) == (2, 1)
    assert compute(rows, prompt(1)) == [8]


@pytest.mark.parametrize("method", ["store", "complete_store"])  # LMCache 4991: a store that failed is served
def test_a_store_that_fails_is_not_found(faulty, method):
    cache, rows, tier = faulty
    tier.failing.add(method)
    compute(rows, prompt(3))
    assert cache.flush(60)
    tier.failing.clear()
    cache.evict(8)
    assert fetched(rows, prompt(3)) == [0]
    assert cache.tier_stats()["host"].more == {"evicted": 0, "failed": 3}


def test_nothing_is_found_before_all_of_it_is_there(faulty):
    cache, _, tier = faulty
    tier.gate.clear()
    load = cache.prefetch([prompt(1)])
    assert tier.entered.wait(60) and not load.done and not load.wait(0.01)
    assert cache.match([prompt(1)])[0] == 0 and cache.stats().used == 3
    tier.gate.set()
    assert load.wait(60) and cache.match([prompt(1)])[0] == 12


def test_blocks_of_a_load_under_way_are_nobody_elses(faulty):  # C04
    cache, rows, tier = faulty
    tier.gate.clear()
    load = cache.prefetch([prompt(1)])
    assert tier.entered.wait(60)
    for number in range(3, 9):
        compute(rows, prompt(number, blocks=4))  # five blocks at a time: all that is left
    assert cache.admit([prompt(3, blocks=5)]).status[0] == 1
    tier.gate.set()
    assert load.wait(60) and compute(rows, prompt(1)) == [12]


def test_cancelled_loads_give_their_blocks_back_once(faulty):  # M08
    cache, rows, tier = faulty
    tier.gate.clear()
    load = cache.prefetch([prompt(1), prompt(2)])
    assert tier.entered.wait(60)
    load.cancel()
    load.cancel()
    tier.gate.set()
    assert load.wait(60)
    assert cache.stats().free == 8
    cache.check()
    assert compute(rows, prompt(1))[0] in (0, 12)


def test_closing_waits_for_a_load(faulty):
    cache, _, tier = faulty
    tier.gate.clear()
    load = cache.prefetch([prompt(1)])
    more = cache.prefetch([prompt(2)] * 50)
    assert tier.entered.wait(60)
    closer = threading.Thread(target=cache.close)
    closer.start()
    time.sleep(0.05)
    assert closer.is_alive(), "bytes are still being written into the pool"
    tier.gate.set()
    closer.join(60)
    assert not closer.is_alive() and load.done
    assert more.done and more.loaded <= 3, "nobody waits for those"
    with pytest.raises(CacheClosed):
        cache.prefetch([prompt(1)])


def test_a_full_pool_has_no_room_for_a_load(faulty):  # T04
    cache, rows, _ = faulty
    sid = rows.admit(prompt(3, blocks=7))
    before = everything(cache)
    load = cache.prefetch([prompt(1)])
    assert load.wait(60) and load.loaded == 0
    assert everything(cache) == before and cache.match([prompt(1)])[0] == 0
    rows.verify(sid)


def test_a_load_that_does_not_fit_is_a_shorter_hit(faulty):  # T04: five blocks into three free ones
    cache, rows, _ = faulty
    compute(rows, prompt(4, blocks=5))
    cache.flush()
    cache.evict(8)
    sid = rows.admit(prompt(3, blocks=4))  # five blocks
    load = cache.prefetch([prompt(4, blocks=5)])
    assert load.wait(60) and load.loaded == 3
    rows.verify(sid)
    rows.release(sid)
    assert compute(rows, prompt(4, blocks=5)) == [12]


def test_what_leads_to_a_load_is_not_evicted_for_it(faulty):  # C03
    cache, rows, _ = faulty
    compute(rows, prompt(4, blocks=6))
    cache.flush()
    cache.evict(3)
    sid = rows.admit(prompt(3, blocks=1))
    load = cache.prefetch([prompt(4, blocks=6)])
    assert load.wait(60) and load.loaded == 3
    rows.verify(sid)
    rows.release(sid)
    assert compute(rows, prompt(4, blocks=6)) == [24]


def test_full_tiers_below_a_full_pool():  # C03: X on the host, Y fills the device, both are full
    cache, rows = tiered(HostTier(2 * 512), num_blocks=2)
    with cache:
        for _ in range(3):
            for number in (1, 2):
                assert cache.prefetch([prompt(number, blocks=1)]).wait(60)
                assert cache.stats().used == 0
                compute(rows, prompt(number, blocks=1))
        assert cache.tier_stats()["host"].hits >= 4


def test_a_slow_tier_never_keeps_blocks_from_sequences():
    tier = Faulty()
    cache, rows = tiered(tier)
    tier.gate.clear()
    for number in range(10):
        compute(rows, prompt(number, blocks=7))
    assert cache.stats().used == 0 and not cache.flush(0.01)
    tier.gate.set()
    assert cache.flush(60)
    assert fetched(rows, prompt(9, blocks=7)) == [28]
    cache.close()


def test_forgetting_reaches_a_store_under_way():
    tier = Faulty()
    cache, rows = tiered(tier)
    tier.gate.clear()
    compute(rows, prompt(1))
    assert tier.entered.wait(60)
    cache.reset()
    tier.gate.set()
    assert cache.flush(60) and cache.tier_stats()["host"].blocks == 0
    cache.close()


def test_steps_and_loads_on_a_delayed_backend():
    """Abandoned steps, loads and evictions while all work is late (C04, C05)."""
    backend = DelayedBackend()
    cache, rows = tiered(HostTier("1 MiB"), backend=backend, num_blocks=12)
    chance = random.Random(5)
    with cache:
        for _ in range(60):
            number = chance.randrange(6)
            load = cache.prefetch([prompt(number)])
            if chance.random() < 0.3:
                load.cancel()
            admission = cache.admit([prompt(number)])
            if admission.status[0] == 0:
                cached = int(admission.cached[0])
                step = cache.extend(admission.ids, [13 - cached])
                rows.write(step, prompt(number)[cached:])
                if chance.random() < 0.5:
                    cache.commit(step, prompt(number)[cached:])
                else:
                    cache.abandon(step)
                cache.release(admission.ids)
            backend.complete(chance.randrange(20))
            cache.retire(backend.completed_fence)
            load.wait(60)
        cache.synchronize()
        cache.check()
        for number in range(6):
            cache.prefetch([prompt(number)]).wait(60)
            cache.synchronize()
            sid = rows.admit(prompt(number))
            cache.synchronize()
            rows.verify(sid)
            rows.release(sid)
            cache.synchronize()


def test_many_sequences_through_all_tiers_by_many_threads(tmp_path):  # T09
    """Two hundred sequences, four in the pool, eight on the host, the rest on disk."""
    cache, rows = tiered(HostTier(32 * 512), DiskTier(tmp_path / "blocks", "4 MiB"), num_blocks=16)
    with cache:
        for number in range(200):
            compute(rows, [number, number // 2, *prompt(number)[2:]])
            cache.flush()
        wrong = []

        def fetch(seed):
            chance = random.Random(seed)
            for _ in range(60):
                number = chance.randrange(200)
                cache.prefetch([[number, number // 2, *prompt(number)[2:]]]).wait(60)

        threads = [threading.Thread(target=fetch, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        chance = random.Random(9)
        for _ in range(150):
            number = chance.randrange(200)
            cache.prefetch([[number, number // 2, *prompt(number)[2:]]]).wait(60)
            wrong.append(compute(rows, [number, number // 2, *prompt(number)[2:]])[0])
        for thread in threads:
            thread.join()
        assert sum(cached == 12 for cached in wrong) > 75
        assert cache.tier_stats()["disk"].corrupt == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_no_tiers(faulty):
    cache, rows, tier = faulty
    tier.gate.clear()
    load = cache.prefetch([prompt(2)])
    assert tier.entered.wait(60)
    pid = os.fork()
    if pid == 0:
        right = (
            cache.stats().free == 8
            and cache.prefetch([prompt(1)]).wait(5)
            and compute(rows, prompt(1), prompt(3)) == [0, 0]
        )
        os._exit(0 if right and cache.flush() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    tier.gate.set()
    assert load.wait(60)
    assert fetched(rows, prompt(1)) == [12]
