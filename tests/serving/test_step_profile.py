"""profile_decode: what it computes, what it counts as whose time, what it refuses."""

import itertools

import pytest

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

import tiny_llama

from pagedcache import KVCache
from pagedcache.errors import OutOfBlocks, OutOfSequences
from pagedcache.serving import profile_decode, step_profile
from pagedcache.serving.models import load_model

LAYERS = tiny_llama.SIZES["layers"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(tiny_llama.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))[0]


def test_whose_time_is_what(model, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(step_profile, "perf_counter", lambda: next(clock))
    with KVCache(model.cache_spec(), num_blocks=16) as cache:
        profile = profile_decode(model, cache, batch=3, context=20, steps=5)
        assert (cache.stats().used, cache.sequences.num_sequences) == (0, 0)
    # The clock moves when it is read: at both ends of a step, of its forward pass, and of each layer's attention.
    assert [(s.whole, s.attention, s.bookkeeping) for s in profile.steps] == [(2 * LAYERS + 3, LAYERS, 2)] * 5
    assert profile.seconds == 2 * LAYERS + 3
    assert profile.attention_share == pytest.approx(LAYERS / profile.seconds)
    assert profile.bookkeeping_share == pytest.approx(2 / profile.seconds)
    assert profile.cache_share == pytest.approx((LAYERS + 2) / profile.seconds)
    assert profile.prefill_seconds == 3 * (2 * LAYERS + 4) + 1


def test_what_is_computed(model):
    seen, lengths = [], []

    class Watched:
        config = model.config

        def forward(self, tokens, step, cache):
            lengths.append(step.kv_lens.tolist())
            return model.forward(tokens, step, cache)

    with KVCache(model.cache_spec(), num_blocks=64) as cache:
        profile = profile_decode(
            Watched(), cache, batch=2, context=30, steps=4, on_prefill=lambda done, total: seen.append((done, total))
        )
    assert lengths == [[30], [30], *([n, n] for n in range(31, 37))]  # two steps to warm up
    assert seen == [(30, 60), (60, 60)]
    assert (profile.batch, profile.context, len(profile.steps)) == (2, 30, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch": 0}, ValueError, "batch is 0"),
        ({"context": 0}, ValueError, "context is 0"),
        ({"steps": -1}, ValueError, "steps is -1"),
        ({"context": 250, "steps": 5}, ValueError, "250 and 7 decode steps make 257 tokens; the model takes 256"),
        ({"batch": 5}, OutOfSequences, "batch of 5; the cache has room for 4"),
        ({"batch": 4, "context": 64}, OutOfBlocks, "4 x 98 tokens need 28 blocks, 16 are free"),
    ],
)
def test_refused(model, arguments, error, message):
    with KVCache(model.cache_spec(), num_blocks=16, max_sequences=4) as cache:
        with pytest.raises(error, match=message):
            profile_decode(model, cache, **({"context": 16} | arguments))
        assert cache.stats().used == 0


def test_nothing_is_left_after_a_failure(model):
    def fail(done, total):
        raise InterruptedError

    with KVCache(model.cache_spec(), num_blocks=16) as cache:
        with pytest.raises(InterruptedError):
            profile_decode(model, cache, context=16, on_prefill=fail)
        assert (cache.stats().used, cache.sequences.num_sequences) == (0, 0)
