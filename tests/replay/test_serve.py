"""Traces through the engine: what is served, in what time, and what is found again."""

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache
from pagedcache.replay import SimulatedModel, Trace, replay_serve, shipped_trace

SPEC = CacheSpec(4, 2, 16, dtype="float16", block_size=16)


def model(context=1 << 14, **options):
    return SimulatedModel(context, 10**9, SPEC.bytes_per_token, bandwidth=1e12, flops=1e15, **options)


def serve(trace, num_blocks=2000, **options):
    with KVCache(SPEC, num_blocks=num_blocks, storage="metadata", max_sequences=64) as cache:
        served = replay_serve(trace, model(), cache, **options)
        cache.check()
        assert cache.stats().sequences == 0
        return served


def trace_of(prompts, outputs, arrivals=None, blocks=None, block_size=None):
    arrivals = None if arrivals is None else np.array(arrivals, float)
    blocks = None if blocks is None else tuple(np.array(each, np.int32) for each in blocks)
    return Trace("made", np.array(prompts), np.array(outputs), arrivals, blocks, block_size)


def test_a_request_alone_by_hand():
    """A prompt of 100 tokens and three more: a step for the prompt, and two that read weights and K/V."""
    served = serve(trace_of([100], [3]))
    steps = [(10**9 + tokens * SPEC.bytes_per_token) / 1e12 for tokens in (100, 101, 102)]
    assert served.steps == 3
    assert served.seconds == pytest.approx(sum(steps))
    assert served.first_token.tolist() == pytest.approx(steps[:1])
    assert served.per_token.tolist() == pytest.approx([sum(steps[1:]) / 2])
    assert (served.prompt_tokens, served.new_tokens, served.refused, served.found_tokens) == (100, 3, 0, 0)


def test_prompts_are_bound_by_products():
    assert model().seconds(10**6, 100) == pytest.approx(10**6 * 2 * (10**9 / 2) / 1e15)
    assert model(parameters=10**9).seconds(10**6, 100) == pytest.approx(10**6 * 2 * 10**9 / 1e15)


def test_arrivals_are_waited_for_and_can_be_hurried():
    trace = trace_of([10, 10], [2, 2], arrivals=[0, 50])
    served = serve(trace)
    assert served.seconds == pytest.approx(50, abs=0.1)
    assert served.first_token.max() < 0.1, "waits count from a request's arrival"
    assert serve(trace, speed=10).seconds == pytest.approx(5, abs=0.1)


def test_blocks_that_the_trace_shares_are_found():
    """Two prompts of three blocks of 64: they share the first two; a third has the same numbers nowhere."""
    trace = trace_of([192, 192, 192], [1] * 3, [0, 1, 2], [[0, 1, 2], [0, 1, 3], [4, 5, 6]], 64)
    assert serve(trace).found_tokens == 128
    assert serve(trace, share_prefixes=False).found_tokens == 0


def test_without_blocks_no_two_prompts_are_alike():
    assert serve(trace_of([64] * 5, [1] * 5, range(5))).found_tokens == 0


def test_what_can_never_fit_is_counted():
    served = serve(trace_of([40_000, 100, 20_000], [1, 1, 1]))
    assert (served.requests, served.refused, served.new_tokens) == (3, 2, 1)


def test_short_of_memory_all_is_served():
    random = np.random.default_rng(0)
    trace = trace_of(random.integers(1, 300, 40), random.integers(1, 200, 40))
    served = serve(trace, num_blocks=60)
    assert served.preemptions > 0
    assert served.new_tokens == trace.outputs.sum()
    assert 0.5 < served.utilisation <= 1


def test_a_run_is_the_same_each_time():
    trace = shipped_trace("mooncake-conversation").first(60)
    runs = [serve(trace, num_blocks=30_000, step_tokens=2048).figures() for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", ["azure-code", "mooncake-synthetic"])
def test_shipped_traces(name):
    trace = shipped_trace(name).first(80)
    with KVCache(SPEC, num_blocks=100_000, storage="metadata") as cache:
        served = replay_serve(trace, model(1 << 17), cache, step_tokens=2048)
    figures = served.figures()
    assert served.refused == 0
    assert served.new_tokens == np.maximum(trace.outputs, 1).sum()
    assert figures["first_token_p50"] <= figures["first_token_p90"] <= figures["first_token_p99"]
    assert (name == "mooncake-synthetic") == (served.found_tokens > 0)


def test_course_keeps_its_integrals(monkeypatch):
    """Samples that were merged tell the same means."""
    trace = trace_of([50] * 20, [30] * 20, np.arange(20) / 10)
    whole = serve(trace)
    monkeypatch.setattr("pagedcache.replay.serve.SAMPLES", 8)
    merged = serve(trace)
    assert len(merged.course) <= 17 < len(whole.course)
    assert merged.batch == pytest.approx(whole.batch)
    assert merged.utilisation == pytest.approx(whole.utilisation)


def test_speed_has_to_be_positive():
    with pytest.raises(ValueError, match="speed is 0; it must be above 0"):
        serve(trace_of([1], [1]), speed=0)


def test_real_models_need_a_clock():
    with KVCache(SPEC, num_blocks=10, storage="metadata") as cache, pytest.raises(ValueError, match="needs a clock"):
        replay_serve(trace_of([1], [1]), object(), cache)


@pytest.mark.parametrize("now", [0.0, 1000.3, 1e9])
def test_clock_that_has_run_before(now):
    """Arrivals fall between what a clock that stands late can show."""
    used = model()
    used.now = now
    with KVCache(SPEC, num_blocks=50, storage="metadata") as cache:
        count = 0

        def progress(done):
            nonlocal count
            count += 1
            assert count < 1000, "it waits for ever"

        served = replay_serve(trace_of([30] * 40, [1] * 40, np.arange(40) / 10), used, cache, progress=progress)
    assert served.seconds == pytest.approx(3.9, abs=0.01)
