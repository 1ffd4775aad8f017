"""SmolLM2-135M on long prompts: the tokens that llama.cpp writes, from one batch and from many chunks."""

import json
from pathlib import Path

import pytest

from pagedcache import KVCache
from pagedcache.serving import generate

pytestmark = pytest.mark.slow

RUNS = json.loads((Path(__file__).parents[1] / "data" / "smollm2_greedy.json").read_text())["runs"]
LONG = [run for run in RUNS if "prompt" not in run]
PROMPTS = [run["prompt_tokens"] for run in LONG]
EXPECTED = [run["greedy_tokens"] for run in LONG]


def run(smollm2, block_size, prompts, **options):
    spec = smollm2[0].cache_spec(block_size=block_size)
    with KVCache(spec, num_blocks=spec.blocks_per_sequence(5000)) as cache:
        result = generate(*smollm2, prompts, cache, max_tokens=32, ends=frozenset(), **options)
        cache.check()
    return result


@pytest.mark.parametrize("block_size", [1, 7, 16, 64])
def test_batched(smollm2, block_size):
    result = run(smollm2, block_size, PROMPTS)
    assert [completion.tokens for completion in result.completions] == EXPECTED


def test_prefilled_in_one_step(smollm2):
    result = run(smollm2, 16, PROMPTS, step_tokens=4096)
    assert [completion.tokens for completion in result.completions] == EXPECTED


@pytest.mark.parametrize("block_size", [1, 7, 16, 64])
def test_forked_after_a_prefix_hit(smollm2, block_size):
    result = run(smollm2, block_size, [PROMPTS[0], PROMPTS[0]], n=2, step_tokens=100)
    assert [completion.tokens for completion in result.completions] == 4 * [EXPECTED[0]]
    assert result.report.reused_tokens == 699 // block_size * block_size
    assert result.report.peak.blocks < 2 * -(-731 // block_size)
