"""An engine over a cache with tiers: the same tokens, less to compute, after a restart too; a bad tier costs time."""

import dataclasses
import threading

import numpy as np
import pytest
from tiered import Faulty

from pagedcache import KVCache
from pagedcache.serving import Engine, beam_search
from pagedcache.tiers import DiskTier, HostTier

RANDOM = np.random.default_rng(3)
PROMPTS = [RANDOM.integers(0, 256, size).tolist() for size in (40, 25, 61, 40, 33)]


def cache_over(tiny, *tiers, num_blocks=40, **options):
    """A cache for the tiny model in blocks of four tokens, over tiers."""
    spec = dataclasses.replace(tiny[0].cache_spec(block_size=4), fingerprint=b"tiny")
    return KVCache(spec, num_blocks=num_blocks, tiers=tiers, **options)


def texts(tiny, cache, prompts=PROMPTS, **options):
    """The tokens of each prompt's text, and the engine's report."""
    with Engine(tiny[0], cache, ends=(), step_tokens=32, **options) as engine:
        requests = [engine.submit(prompt, max_tokens=12) for prompt in prompts]
        engine.run()
        return [request.completions[0].tokens for request in requests], engine.report


@pytest.fixture
def expected(tiny):
    with cache_over(tiny, num_blocks=200) as cache:
        return texts(tiny, cache)[0]


def test_texts_are_the_same_and_less_is_computed(tiny, expected):
    with cache_over(tiny, HostTier("4 MiB"), num_blocks=24) as cache:
        for round in range(3):
            found, report = texts(tiny, cache)
            assert found == expected
            assert round == 0 or report.reused_tokens >= sum(len(prompt) // 4 * 4 - 4 for prompt in PROMPTS)
        assert cache.stats().evictions > 0


def test_after_a_restart_nothing_is_computed_again(tiny, tmp_path, expected):
    with cache_over(tiny, DiskTier(tmp_path / "blocks", "4 MiB"), num_blocks=200) as cache:
        assert texts(tiny, cache)[0] == expected
    with cache_over(tiny, DiskTier(tmp_path / "blocks", "4 MiB"), num_blocks=200, backend="numpy") as cache:
        longer = [prompt + text for prompt, text in zip(PROMPTS, expected, strict=True)]
        _, report = texts(tiny, cache, longer)
        assert report.reused_tokens >= sum((len(prompt) - 1) // 4 * 4 for prompt in longer)


@pytest.mark.parametrize("preemption", ["recompute", "swap", "never"])
def test_any_preemption(tiny, expected, preemption):
    with cache_over(tiny, HostTier("4 MiB"), num_blocks=24) as cache:
        assert texts(tiny, cache, preemption=preemption)[0] == expected
        assert texts(tiny, cache, preemption=preemption)[0] == expected


@pytest.mark.parametrize("method", ["longest_prefix", "prepare_load", "load", "wrong", "store", "complete_store"])
def test_a_failing_tier_costs_time_only(tiny, expected, method):
    tier = Faulty("4 MiB")
    with cache_over(tiny, tier, num_blocks=24) as cache:
        texts(tiny, cache)
        tier.failing.add(method)
        assert texts(tiny, cache)[0] == expected


def test_a_tier_that_fails_and_returns_in_between(tiny, expected):
    tier = Faulty("4 MiB")
    with cache_over(tiny, tier, num_blocks=24) as cache, Engine(tiny[0], cache, ends=(), step_tokens=32) as engine:
        requests = [engine.submit(prompt, max_tokens=12) for prompt in 4 * PROMPTS]
        turns = 0
        while not engine.idle:
            engine.step()
            turns += 1
            (tier.failing.add if turns % 7 < 3 else tier.failing.discard)("load" if turns % 2 else "store")
        assert [request.completions[0].tokens for request in requests] == 4 * expected


def test_those_that_run_go_on_while_a_load_is_slow(tiny):
    tier = Faulty("4 MiB")
    with cache_over(tiny, tier, num_blocks=200) as cache:
        texts(tiny, cache, PROMPTS[2:3])
        cache.flush()
        cache.evict(200)
        with Engine(tiny[0], cache, ends=()) as engine:
            running = engine.submit(PROMPTS[1], max_tokens=40)
            engine.step()
            tier.gate.clear()
            waiting = engine.submit(PROMPTS[2], max_tokens=4)
            while not running.done:
                engine.step()
            assert waiting.started is None and len(running.completions[0].tokens) == 40
            tier.gate.set()
            engine.run()
            assert waiting.found_tokens == 60


def test_a_stream_that_another_thread_collects_is_cancelled_by_the_engine(tiny):
    """The collector runs on threads of tiers too, which may hold a tier's lock: they must not touch the cache."""
    with cache_over(tiny, HostTier("4 MiB")) as cache, Engine(tiny[0], cache, ends=()) as engine:
        stream = engine.stream(PROMPTS[0], max_tokens=12)
        next(stream)
        request, holder = stream._request, [stream]
        del stream
        thread = threading.Thread(target=holder.clear)
        thread.start()
        thread.join()
        assert not request.done and not engine.idle
        engine.step()
        assert request.done and engine.idle and cache.stats().used == 0


def test_beams_find_their_prompt(tiny):
    with cache_over(tiny, HostTier("4 MiB"), num_blocks=60, max_sequences=4) as cache:
        first = beam_search(tiny[0], None, [PROMPTS[0]], cache, beams=3, max_tokens=8, ends=frozenset())
        cache.evict(60)
        again = beam_search(tiny[0], None, [PROMPTS[0]], cache, beams=3, max_tokens=8, ends=frozenset())
        assert again.completions[0].tokens == first.completions[0].tokens
        assert again.report.reused_tokens == 36


@pytest.fixture
def loading(tiny):
    """An engine in which one runs and one waits for a load that takes most of the blocks; both; the tier."""
    tier = Faulty("4 MiB")
    with cache_over(tiny, tier, num_blocks=24) as cache:
        texts(tiny, cache, PROMPTS[2:3])
        cache.flush()
        cache.evict(24)
        with Engine(tiny[0], cache, ends=(), preemption="never") as engine:
            running = engine.submit(PROMPTS[1][:5], max_tokens=12)
            engine.step()
            tier.gate.clear()
            tier.entered.clear()
            waiting = engine.submit(PROMPTS[2], max_tokens=4)
            engine.step()
            assert tier.entered.wait(60) and waiting.started is None
            yield engine, running, waiting, tier
            tier.gate.set()


def test_what_is_being_loaded_counts_as_free(loading):
    """Nobody runs any more and the load still holds its blocks: it is waited for, and nobody is refused."""
    engine, running, waiting, tier = loading
    while not running.done:
        engine.step()
    threading.Timer(0.05, tier.gate.set).start()
    engine.run()
    assert waiting.found_tokens == 60 and waiting.completions[0].finish == "length"


def test_a_load_of_one_that_is_cancelled_is_in_nobodys_way(loading):
    engine, running, waiting, tier = loading
    engine.cancel(waiting)
    while not running.done:
        engine.step()
    threading.Timer(0.05, tier.gate.set).start()
    other = engine.submit(PROMPTS[0], max_tokens=40)
    engine.run()
    assert len(other.completions[0].tokens) == 40


def test_those_that_run_get_the_blocks_of_a_load(loading):
    """Blocks of a load are none that were promised to somebody, however much is begun and cancelled."""
    engine, running, waiting, tier = loading
    engine.cancel(waiting)
    other = engine.submit(PROMPTS[2][:50], max_tokens=4)
    while not running.done:
        engine.step()
    assert len(running.completions[0].tokens) == 12
    tier.gate.set()
    engine.run()
    assert len(other.completions[0].tokens) == 4
