"""A server that dies and returns while texts are written: they are the same, and nothing is raised."""

import dataclasses

import numpy as np
import pytest

from pagedcache import KVCache
from pagedcache.serving import Engine
from pagedcache.tiers import RedisTier

PROMPTS = [np.random.default_rng(seed).integers(0, 256, 40).tolist() for seed in range(6)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    import tiny_llama

    from pagedcache.serving.models import load_model

    return load_model(tiny_llama.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def texts(tiny, cache, between=lambda turn: None):
    """The tokens of each prompt's text, and how many of the prompts' were found."""
    with Engine(tiny[0], cache, ends=(), step_tokens=32) as engine:
        requests = [engine.submit(prompt, max_tokens=12) for prompt in PROMPTS]
        turn = 0
        while not engine.idle:
            engine.step()
            between(turn)
            turn += 1
        return [request.completions[0].tokens for request in requests], engine.report.reused_tokens


def test_generation_goes_on(tiny, own_server):
    server = own_server()
    spec = dataclasses.replace(tiny[0].cache_spec(block_size=4), fingerprint=b"tiny")
    tier = RedisTier(server.url, timeout=0.2, max_failures=1, retry_after=0.05)

    def trouble(turn):
        if turn % 12 == 4:
            server.kill()
        elif turn % 12 == 8:
            server.start()

    with KVCache(spec, num_blocks=24, tiers=[tier]) as cache:
        expected, _ = texts(tiny, cache)
        assert cache.flush(60)
        assert texts(tiny, cache, trouble)[0] == expected
        if server.process.poll() is not None:
            server.start()
        assert texts(tiny, cache)[0] == expected
        assert cache.flush(60)
        cache.evict(24)
        assert texts(tiny, cache)[0] == expected and cache.tier_stats()["redis"].hits > 0
