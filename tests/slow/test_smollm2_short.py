"""SmolLM2-135M on short prompts: the 48 tokens that llama.cpp writes, for each block size and arrangement."""

import json
from pathlib import Path

import pytest

from pagedcache import KVCache
from pagedcache.serving import generate

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("block_size", [1, 7, 16, 64])]

RUNS = json.loads((Path(__file__).parents[1] / "data" / "smollm2_greedy.json").read_text())["runs"]
SHORT = [run for run in RUNS if "prompt" in run]
PROMPTS = [run["prompt_tokens"] for run in SHORT]
EXPECTED = [run["greedy_tokens"] for run in SHORT]


@pytest.fixture
def run(smollm2, block_size):
    """Continue prompts in one cache, which is checked at the end."""
    with KVCache(smollm2[0].cache_spec(block_size=block_size), num_blocks=900) as cache:

        def call(prompts, **options):
            result = generate(*smollm2, prompts, cache, **{"max_tokens": 48, "ends": frozenset()} | options)
            cache.check()
            return result

        yield call


def tokens_of(result):
    return [completion.tokens for completion in result.completions]


def test_there_are_48_tokens(block_size):
    assert [len(tokens) for tokens in EXPECTED] == [48, 48]


def test_alone(run):
    assert tokens_of(run(PROMPTS[:1])) + tokens_of(run(PROMPTS[1:])) == EXPECTED


@pytest.mark.parametrize("step_tokens", [1, 3, 256])
def test_batched_and_chunked(run, step_tokens):
    assert tokens_of(run(PROMPTS, step_tokens=step_tokens)) == EXPECTED


def test_forked(run, block_size):
    """Three samples of each prompt; where a prompt ends within a block, two of them copy it."""
    result = run(PROMPTS, n=3)
    assert tokens_of(result) == 3 * [EXPECTED[0]] + 3 * [EXPECTED[1]]
    assert result.report.copied == 2 * sum(len(prompt) % block_size > 0 for prompt in PROMPTS)


def test_forked_from_the_middle(run, smollm2, block_size):
    """Fork after 13 new tokens; parent and children go on in one batch, each one token behind the one before it."""
    model, _ = smollm2
    prompt, expected = PROMPTS[0], EXPECTED[0]
    with KVCache(model.cache_spec(block_size=block_size), num_blocks=200) as cache:

        def advance(ids, rows):
            tokens = [token for row in rows for token in row]
            step = cache.extend(ids, [len(row) for row in rows])
            logits = model.forward(tokens, step, cache)
            cache.commit(step, tokens)
            return [int(token) for token in logits.argmax(axis=1)]

        (parent,) = cache.admit([prompt]).ids
        assert advance([parent], [prompt + expected[:13]]) == [expected[13]]
        ids = [parent, *cache.fork([parent], 2)[0]]
        done = [13, 13, 13]  # of the new tokens, how many each has stored
        for turn in range(36):
            rows = [i for i in range(3) if turn >= i and done[i] < 47]
            found = advance([ids[i] for i in rows], [[expected[done[i]]] for i in rows])
            for i in rows:
                done[i] += 1
            assert found == [expected[done[i]] for i in rows]
            cache.check()
        assert done == [47, 47, 47]


def test_after_a_prefix_hit(run, block_size):
    """Each text again, cut where it first fills a block: what follows is computed on the block that was found."""
    assert tokens_of(run(PROMPTS)) == EXPECTED
    given = [max(0, block_size + 1 - len(prompt)) for prompt in PROMPTS]  # new tokens that become prompt
    if max(given) >= 48:
        pytest.skip("too short to fill a block of 64; test_smollm2_long.py finds blocks of 64")
    prompts = [prompt + tokens[:count] for prompt, tokens, count in zip(PROMPTS, EXPECTED, given, strict=True)]
    again = [run([prompt], max_tokens=48 - count) for prompt, count in zip(prompts, given, strict=True)]
    assert [tokens_of(result) for result in again] == [
        [tokens[count:]] for tokens, count in zip(EXPECTED, given, strict=True)
    ]
    assert [result.report.reused_tokens for result in again] == [
        (len(prompt) - 1) // block_size * block_size for prompt in prompts
    ]
