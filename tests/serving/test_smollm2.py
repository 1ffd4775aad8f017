"""SmolLM2-135M on the paged cache writes the tokens that llama.cpp writes, however the work is arranged.

The expected tokens come from llama.cpp on a float32 copy of the same file (tests/data/smollm2_greedy.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

from pagedcache import KVCache
from pagedcache.serving import generate

RUNS = json.loads((Path(__file__).parents[1] / "data" / "smollm2_greedy.json").read_text())["runs"]
SHORT = [run for run in RUNS if "prompt" in run]
PROMPTS = [run["prompt_tokens"] for run in SHORT]
N = 16  # tokens compared, across the border of a block of 16; tests/slow compares all 48
EXPECTED = [run["greedy_tokens"][:N] for run in SHORT]


@pytest.fixture
def run(smollm2):
    def call(prompts, *, block_size=16, cache=None, **options):
        options = {"max_tokens": N, "ends": frozenset()} | options
        if cache is not None:
            return generate(*smollm2, prompts, cache, **options)
        with KVCache(smollm2[0].cache_spec(block_size=block_size), num_blocks=600) as own:
            result = generate(*smollm2, prompts, own, **options)
            own.check()
        return result

    return call


def tokens_of(result):
    return [completion.tokens for completion in result.completions]


def test_tokenizer_gives_the_reference_prompts(smollm2):
    _, tokenizer = smollm2
    assert [tokenizer.encode(run["prompt"]) for run in SHORT] == PROMPTS


@pytest.mark.parametrize("prompt", range(len(SHORT)))
def test_all_reference_tokens(run, smollm2, prompt):
    expected = SHORT[prompt]["greedy_tokens"]
    result = run([PROMPTS[prompt]], max_tokens=len(expected))
    assert tokens_of(result) == [expected]
    assert result.completions[0].text == smollm2[1].decode(expected)


@pytest.mark.parametrize("block_size", [1, 7, 16, 64])
def test_batched_with_chunked_prefill(run, block_size):
    result = run(PROMPTS, block_size=block_size, step_tokens=3)
    assert tokens_of(result) == EXPECTED


def test_forked(run):
    """Both prompts end within a block, so that the samples' first writes copy it."""
    result = run(PROMPTS, n=2)
    assert tokens_of(result) == [EXPECTED[0], EXPECTED[0], EXPECTED[1], EXPECTED[1]]
    assert result.report.copied == 2


@pytest.mark.parametrize("block_size", [1, 4])
def test_after_a_prefix_hit(run, smollm2, block_size):
    """Prompts continued from blocks that an earlier sequence left behind."""
    with KVCache(smollm2[0].cache_spec(block_size=block_size), num_blocks=200) as cache:
        first = run(PROMPTS, cache=cache, max_tokens=1)
        again = run(PROMPTS, cache=cache)
        cache.check()
    assert first.report.reused_tokens == 0
    assert again.report.reused_tokens == sum((len(prompt) - 1) // block_size * block_size for prompt in PROMPTS)
    assert tokens_of(first) == [tokens[:1] for tokens in EXPECTED]
    assert tokens_of(again) == EXPECTED


def advance(model, cache, ids, rows):
    """Run each row of tokens through the model and commit them; logits after each row."""
    tokens = np.concatenate(rows)
    step = cache.extend(ids, [len(row) for row in rows])
    logits = model.forward(tokens, step, cache)
    cache.commit(step, tokens)
    return logits


def test_forked_from_the_middle_of_a_text(smollm2):
    """Fork after eight generated tokens, give one child other tokens, go on with all: each equals a fresh run."""
    model, _ = smollm2
    text, then, odd = PROMPTS[1] + EXPECTED[1][:8], EXPECTED[1][8:11], [100, 200, 300]
    spec = model.cache_spec(block_size=4)
    with KVCache(spec, num_blocks=40) as cache, KVCache(spec, num_blocks=40) as fresh:
        (parent,) = cache.admit([text]).ids
        advance(model, cache, [parent], [text])
        child, other = cache.fork([parent], 2)[0]
        logits = advance(model, cache, [other, parent, child], [odd, then[:2], then[:1]])
        assert logits[1].argmax() == then[2]
        assert logits[2].argmax() == then[1]
        expected = advance(model, fresh, fresh.admit([text + odd]).ids, [text + odd])
        assert np.abs(logits[0] - expected[0]).max() < 1e-3
        cache.check()


def test_chat_answers(smollm2):
    model, tokenizer = smollm2
    prompt = tokenizer.chat([("user", "What is the capital of France?")])
    with KVCache(model.cache_spec(), num_blocks=20) as cache:
        (completion,) = generate(model, tokenizer, [prompt], cache, max_tokens=20).completions
    assert completion.text == "The capital of France is Paris."
    assert completion.ended
