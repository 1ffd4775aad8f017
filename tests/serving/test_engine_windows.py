"""The engine on a model whose layers mostly see a window: texts are those of a dense mask, however short blocks are."""

import numpy as np
import pytest
import tiny_gemma
from dense_cache import DenseCache

from pagedcache import KVCache
from pagedcache.errors import UnsupportedModel
from pagedcache.serving import Engine, PromptLookup, compare_serving
from pagedcache.serving.models import load_model

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

NEW = 24  # tokens of a text
PROMPTS = [np.random.default_rng(length).integers(0, 280, length).tolist() for length in (3, 30, 11, 19, 1)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(tiny_gemma.write(tmp_path_factory.mktemp("gemma") / "tiny.gguf"))[0]


@pytest.fixture(scope="module")
def expected(model):
    """The greedy texts, computed over a dense mask."""
    texts = []
    for new in PROMPTS:
        cache, text = DenseCache(model.cache_spec(), len(new) + NEW), []
        while len(text) < NEW:
            new = [int(model.forward(new, cache.extend(len(new)), cache)[0].argmax())]
            text += new
        texts.append(text)
    return texts


def run(model, num_blocks, *, max_step_tokens=8, n=1, **options):
    """Tokens of the greedy texts, and the requests; nothing but the prefix cache is left."""
    spec = model.cache_spec(block_size=4, max_step_tokens=max_step_tokens)
    with KVCache(spec, num_blocks=num_blocks) as cache:
        with Engine(model, cache, **options) as engine:
            requests = [engine.submit(prompt, max_tokens=NEW, n=n) for prompt in PROMPTS]
            engine.run()
        cache.check()
        assert cache.stats().sequences == 0
        assert sum(cache.stats().group_blocks) == 0
        assert cache.pool.num_free == num_blocks
    return [[completion.tokens for completion in request.completions] for request in requests], requests


@pytest.mark.parametrize("step_tokens", [3, 8, 64])
def test_prompts_longer_than_a_step_may_be(model, expected, step_tokens):  # W17
    """A step has at most max_step_tokens of one sequence, however many the engine would compute."""
    texts, _ = run(model, 400, step_tokens=step_tokens)
    assert texts == [[text] for text in expected]


@pytest.mark.parametrize("preemption", ["recompute", "swap", "never"])
def test_short_of_blocks(model, expected, preemption):
    texts, requests = run(model, 45, preemption=preemption)
    assert texts == [[text] for text in expected]
    assert any(request.preemptions for request in requests) == (preemption != "never")


def test_samples(model, expected):
    texts, _ = run(model, 400, n=3)
    assert texts == [3 * [text] for text in expected]


def test_guesses(model, expected):
    texts, _ = run(model, 400, draft=PromptLookup(count=4))
    assert texts == [[text] for text in expected]


def test_nothing_to_compare_with(model):
    with pytest.raises(UnsupportedModel, match="has 3 layer groups"):
        compare_serving(model, [([1, 2], 3)], memory=1 << 20)
