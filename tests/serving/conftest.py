"""A tiny random model for the tests of serving."""

import pytest
import tiny_llama

from pagedcache import KVCache
from pagedcache.serving import Engine
from pagedcache.serving.models import load_model


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    return tiny_llama.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_path):
    """(model, tokenizer)"""
    return load_model(tiny_path)


@pytest.fixture
def cache_of(tiny):
    """Make caches, and check at the end that nothing but the prefix cache is left in them."""
    made = []

    def make(num_blocks=100, block_size=4, **options):
        cache = KVCache(tiny[0].cache_spec(block_size=block_size), num_blocks=num_blocks, **options)
        made.append(cache)
        return cache

    yield make
    for cache in made:
        cache.check()
        assert cache.stats().sequences == 0
        assert cache.pool.num_free == cache.num_blocks


@pytest.fixture
def engine_of(tiny):
    """Make engines on the tiny model, without end tokens."""

    def make(cache, **options):
        return Engine(tiny[0], cache, tiny[1], **{"ends": ()} | options)

    return make


@pytest.fixture
def alone(engine_of, cache_of):
    """Tokens of a prompt's texts, run alone: 20 greedy ones."""

    def run(prompt, **options):
        engine = engine_of(cache_of())
        request = engine.submit(prompt, max_tokens=20, **options)
        engine.run()
        return [completion.tokens for completion in request.completions]

    return run
