"""The engine on a model with windows when something goes wrong, and where the pool is as small as may be."""

from contextlib import suppress

import numpy as np
import pytest
import tiny_gemma

from pagedcache import KVCache
from pagedcache.serving import Engine, PromptLookup, Sampling
from pagedcache.serving.models import load_model
from pagedcache.testing import DelayedBackend

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

PROMPTS = [np.random.default_rng(length).integers(0, 280, length).tolist() for length in (3, 30, 11, 1)]
KINDS = {
    "greedy": {},
    "samples": {"n": 3},
    "drawn": {"n": 2, "sampling": Sampling(temperature=1.0, seed=3)},
    "beams": {"beams": 3, "n": 2},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(tiny_gemma.write(tmp_path_factory.mktemp("gemma") / "tiny.gguf"))[0]


@pytest.fixture
def cache_of(model):
    """Make caches; at the end nothing but the prefix cache is left in them."""
    made = []

    def make(num_blocks=400, *, block_size=4, max_step_tokens=8, **options):
        spec = model.cache_spec(block_size=block_size, max_step_tokens=max_step_tokens)
        made.append(KVCache(spec, num_blocks=num_blocks, **options))
        return made[-1]

    yield make
    for cache in made:
        cache.synchronize()
        cache.check()
        assert cache.stats().sequences == 0
        assert cache.pool.num_free == cache.num_blocks
        cache.close()


def texts_of(model, cache, *, kind="greedy", error=None, **options):
    with Engine(model, cache, ends=(), **options) as engine:
        requests = [engine.submit(prompt, max_tokens=14, **KINDS[kind]) for prompt in PROMPTS]
        for _ in range(3000):
            if engine.idle:
                break
            with suppress(*([] if error is None else [error])):
                engine.step()
        assert engine.idle
    return [completion.tokens for request in requests for completion in request.completions]


class Failing:
    """A call that raises now and then, after it has done its work."""

    def __init__(self, call, share=0.25):
        self.call, self.share, self.random, self.raised = call, share, np.random.default_rng(1), 0

    def __call__(self, *arguments, **options):
        result = self.call(*arguments, **options)
        if self.random.random() < self.share:
            self.raised += 1
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["commit", "forward"])
def test_what_raises_late_changes_no_text(model, cache_of, monkeypatch, verb, kind):
    """A token that is stored and was not given is computed again, though its window may have let go what it sees."""
    expected = texts_of(model, cache_of(), kind=kind)
    cache = cache_of()
    owner = model if verb == "forward" else cache
    failing = Failing(getattr(owner, verb), 0.05 if kind == "beams" else 0.25)  # a search begins anew each time
    monkeypatch.setattr(owner, verb, failing)
    assert texts_of(model, cache, kind=kind, error=KeyboardInterrupt) == expected
    assert failing.raised


@pytest.mark.parametrize("max_step_tokens", [1, 2, 3, 5])
def test_guesses_are_clipped(model, cache_of, max_step_tokens):
    """A drafter that proposes more than a step may have of one sequence."""
    draft = PromptLookup(count=8, shortest=1)
    expected = texts_of(model, cache_of())
    assert texts_of(model, cache_of(max_step_tokens=max_step_tokens), draft=draft) == expected


@pytest.mark.parametrize("preemption", ["recompute", "swap", "never"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_smallest_pool(model, cache_of, preemption, kind, steps_in_flight):
    """A pool that holds just one request of the largest kind, by what submit says: all are served."""
    expected = texts_of(model, cache_of(), kind=kind)
    least = least_blocks(model, cache_of, kind, preemption, steps_in_flight)
    found = texts_of(model, cache_of(least, steps_in_flight=steps_in_flight), kind=kind, preemption=preemption)
    assert found == expected


def least_blocks(model, cache_of, kind, preemption, steps_in_flight):
    for blocks in range(10, 200):
        with Engine(model, cache_of(blocks, steps_in_flight=steps_in_flight), ends=(), preemption=preemption) as engine:
            try:
                for prompt in PROMPTS:
                    engine.submit(prompt, max_tokens=14, **KINDS[kind])
            except MemoryError:
                continue
            return blocks
    raise AssertionError("no pool is large enough")


@pytest.mark.parametrize("preemption", ["recompute", "swap", "never"])
def test_asynchronous_backend(model, cache_of, preemption):
    """Blocks of windows come free when work is done."""
    expected = texts_of(model, cache_of())
    cache = cache_of(60, backend=DelayedBackend())
    attend = cache.attend

    def done(*arguments, **options):
        out = attend(*arguments, **options)
        cache.backend.complete(None)  # what reads a result waits for it
        return out

    cache.attend = done
    assert texts_of(model, cache, preemption=preemption) == expected


@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("together", [2, 3])
def test_promises_hold_where_prefixes_are_found(model, cache_of, block_size, together):
    """What is found in windows is held beside what was promised for them; nobody may be preempted, or stuck."""
    tails = [[k] * 4 for k in range(1, together + 1)]
    with Engine(model, cache_of(block_size=block_size), ends=(), preemption="never") as engine:
        each = engine.submit(PROMPTS[1] + tails[0], max_tokens=14).blocks
    cache = cache_of(together * each, block_size=block_size)
    with Engine(model, cache, ends=(), preemption="never") as engine:
        engine.submit(PROMPTS[1], max_tokens=2)
        engine.run()
        requests = [engine.submit(PROMPTS[1] + tail, max_tokens=14) for tail in tails]
        engine.run()
    assert [len(request.completions[0].tokens) for request in requests] == [14] * together


@pytest.mark.parametrize("length", [7, 8])
@pytest.mark.parametrize("block_size", [1, 4])
def test_a_text_of_one_token_takes_the_prompt_only(model, cache_of, length, block_size):
    """What submit takes is not refused later for the room of a token that is never computed."""
    blocks = model.cache_spec(block_size=block_size, max_step_tokens=8).blocks_per_sequence(length)
    with Engine(model, cache_of(blocks, block_size=block_size), ends=()) as engine:
        request = engine.submit(PROMPTS[1][:length], max_tokens=1)
        engine.run()
    assert len(request.completions[0].tokens) == 1
