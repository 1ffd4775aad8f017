"""Gemma 3 270M writes the tokens that llama.cpp writes: over a dense mask, and over windows whose blocks are released.

The expected tokens come from llama.cpp on a float32 copy of the same file (tests/data/gemma3_greedy.json). The long
prompts have 700 and 1500 tokens; a window is 512.
"""

import json
from pathlib import Path

import pytest
from dense_cache import DenseCache

from pagedcache import KVCache
from pagedcache.serving import generate

pytestmark = pytest.mark.slow

RUNS = json.loads((Path(__file__).parents[1] / "data" / "gemma3_greedy.json").read_text())["runs"]
PROMPTS = [run["prompt_tokens"] for run in RUNS]
EXPECTED = [run["greedy_tokens"] for run in RUNS]
CHUNK, WINDOW = 256, 512  # tokens of a step, of a window


@pytest.fixture
def run(gemma):
    """Continue prompts in one cache, each by as many tokens as are expected, and compare them."""

    def call(prompts, block_size, **options):
        model, tokenizer = gemma
        spec = model.cache_spec(block_size=block_size, max_step_tokens=CHUNK)
        blocks = sum(spec.blocks_per_sequence(len(PROMPTS[i]) + 48) + spec.num_groups for i in prompts)
        with KVCache(spec, num_blocks=blocks) as cache:
            chosen = [PROMPTS[i] for i in prompts]
            result = generate(model, tokenizer, chosen, cache, max_tokens=48, ends=frozenset(), **options)
            cache.check()
        for i, completion in zip(prompts, result.completions, strict=True):
            assert completion.tokens[: len(EXPECTED[i])] == EXPECTED[i]

    return call


def test_tokenizer_gives_the_reference_prompts(gemma):
    _, tokenizer = gemma
    for run in RUNS:
        text = run.get("prompt") or tokenizer.decode(run["prompt_tokens"])
        assert tokenizer.encode(text) == run["prompt_tokens"]
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_it_is_no_model_to_chat_with(gemma):
    """It has the tokens of turns, but was not trained to talk."""
    _, tokenizer = gemma
    assert not tokenizer.can_chat
    assert {tokenizer.encode(name)[-1] for name in ("<eos>", "<end_of_turn>")} == tokenizer.ends


@pytest.mark.parametrize("prompt", range(len(RUNS)))
def test_over_a_dense_mask(gemma, prompt):
    model, _ = gemma
    tokens, expected = PROMPTS[prompt], EXPECTED[prompt]
    cache = DenseCache(model.cache_spec(), len(tokens) + len(expected))
    found, new = [], tokens
    while len(found) < len(expected):
        new = [int(model.forward(new, cache.extend(len(new)), cache)[0].argmax())]
        found += new
    assert found == expected


@pytest.mark.parametrize("block_size", [1, 7, 16, 64])
def test_batched(run, block_size):
    run(range(len(RUNS)), block_size)


def test_in_small_chunks(run):
    run([0, 1, 2], 16, step_tokens=60)


@pytest.mark.parametrize("block_size", [7, 64])
def test_forked_after_a_prefix_hit(gemma, block_size):
    """The second prompt finds the first one's blocks: of the windows those that its own queries see."""
    model, tokenizer = gemma
    spec = model.cache_spec(block_size=block_size, max_step_tokens=CHUNK)
    prompt, expected = PROMPTS[2], EXPECTED[2]
    with KVCache(spec, num_blocks=4 * spec.blocks_per_sequence(len(prompt) + len(expected))) as cache:
        options = {"max_tokens": len(expected), "ends": frozenset(), "step_tokens": 100}
        generate(model, tokenizer, [prompt], cache, max_tokens=1)
        result = generate(model, tokenizer, [prompt], cache, n=2, **options)
        cache.check()
    assert [completion.tokens for completion in result.completions] == 2 * [expected]
    assert result.report.reused_tokens == (len(prompt) - 1) // block_size * block_size


def test_windows_hold_no_more_than_their_size(gemma):  # R10
    """While 1500 tokens go in by chunks, and more by ones; what is written stays right."""
    model, _ = gemma
    spec = model.cache_spec(block_size=16, max_step_tokens=CHUNK)
    (prompt, expected), most = (PROMPTS[3], EXPECTED[3]), -(-(WINDOW - 1 + CHUNK) // 16) + 1
    text = prompt + expected
    ends = [*range(CHUNK, len(prompt), CHUNK), *range(len(prompt), len(text))]
    with KVCache(spec, num_blocks=spec.blocks_per_sequence(len(text))) as cache:
        (sequence,) = cache.admit([prompt]).ids
        for begin, end in zip([0, *ends], ends, strict=False):
            step = cache.extend([sequence], end - begin)
            logits = model.forward(text[begin:end], step, cache)
            cache.commit(step, text[begin:end])
            full, *sliding = cache.stats().group_blocks
            assert full >= -(-end // 16)
            assert len(sliding) == 5 and max(sliding) <= most
            if end >= len(prompt):
                assert logits[0].argmax() == text[end]
        cache.check()
        assert sum(sliding) < 3 * full, "all tokens would take five times as much as the group that keeps them"
