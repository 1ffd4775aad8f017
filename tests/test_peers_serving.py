"""The comparison of serving with llama.cpp: what both sides get, check and are judged by; not how fast anything is."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

import tiny_llama

from pagedcache import KVCache
from pagedcache.serving import generate
from pagedcache.serving.models import GGUFFile, load_model

pytestmark = pytest.mark.thread_unsafe  # the import path is changed

PROMPTS = [[5, 6, 7, 8], [9, 10, 11, 12], [1, 2, 3, 4]]


@pytest.fixture
def peers(checkout, monkeypatch):
    """serving.py, and modules of benchmarks/peers/_serving by name."""
    monkeypatch.syspath_prepend(checkout / "benchmarks" / "peers")
    modules = {name: importlib.import_module(f"_serving.{name}") for name in ("float32", "ours", "worker")}
    return SimpleNamespace(serving=importlib.import_module("serving"), **modules)


@pytest.fixture
def path(tmp_path):
    return tiny_llama.write(tmp_path / "tiny.gguf")


def options(path, **changes):
    return SimpleNamespace(**{"model": path, "kv": "f32", "count": 3, "length": 12, "threads": 1, **changes})


def test_a_float32_copy_holds_the_same(peers, path, tmp_path):
    peers.float32.write_float32(path, tmp_path / "copy.gguf")
    with GGUFFile(path) as before, GGUFFile(tmp_path / "copy.gguf") as after:
        assert set(after.tensors) == set(before.tensors)
        for name in before.tensors:
            np.testing.assert_array_equal(after.float32(name), before.float32(name))
    text = "the same tokens"
    assert load_model(tmp_path / "copy.gguf")[1].encode(text) == load_model(path)[1].encode(text)


def test_our_side_finds_the_tokens_of_generate_each_time(peers, path):
    model, tokenizer = load_model(path)
    with KVCache(model.cache_spec(), num_blocks=16) as cache:
        made = generate(model, tokenizer, PROMPTS, cache, max_tokens=5, ends=frozenset()).completions
    worker = peers.worker.Worker(peers.ours, options(path))
    assert worker.prefill(PROMPTS) > 0
    for _ in range(2):
        answer = worker.decode(steps=4)
        assert np.transpose(answer["tokens"]).tolist() == [completion.tokens for completion in made]
        assert len(answer["seconds"]) == 4


def test_steps_take_the_tokens_that_they_are_given(peers, path):
    worker = peers.worker.Worker(peers.ours, options(path))
    worker.prefill(PROMPTS)
    free = worker.decode(steps=4)["tokens"]
    given = [[(token + 1) % 280 for token in row] for row in free]
    assert worker.decode(steps=4, forced=free)["tokens"] == free
    assert worker.decode(steps=4, forced=given)["tokens"] != free


class Stub:
    """A side that says how long its steps take and what it finds."""

    def __init__(self, name, seconds, tokens):
        self.name, self.seconds, self.tokens, self.steps = name, seconds, tokens, []

    def ask(self, do, **fields):
        return 1.0 if do == "prefill" else {"seconds": [self.seconds] * fields["steps"], "tokens": self.tokens}


def test_the_ratio_is_ours_to_the_peers(peers, capsys):
    same = [[1, 2], [3, 4]]
    setting = SimpleNamespace(prompt=4, steps=1, rounds=3)
    ratio = peers.serving.measure([Stub("ours", 0.5, same), Stub("theirs", 0.25, same)], PROMPTS[:2], setting)
    assert ratio == pytest.approx(0.5)
    assert "ours       decode     4.0 tokens/s" in capsys.readouterr().out


def test_a_peer_that_computes_something_else_is_refused(peers):
    sides = [Stub("ours", 0.5, [[1, 2], [3, 4]]), Stub("theirs", 0.25, [[1, 2], [3, 5]])]
    with pytest.raises(SystemExit, match="theirs does not compute what ours does"):
        peers.serving.measure(sides, PROMPTS[:2], SimpleNamespace(prompt=4, steps=1, rounds=3))


def test_it_runs_without_a_peer(peers, path, capsys):
    arguments = ["--ours-only", "--parallel", "2", "--prompt", "20", "--steps", "2", "--rounds", "1", "--threads", "1"]
    assert peers.serving.main([*arguments, "--model", str(path)]) == 0
    assert "2 sequences, K and V f16, 1 threads: pagedcache" in capsys.readouterr().out
