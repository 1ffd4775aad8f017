"""SmolLM2-135M on the emulated GPU: the first tokens are those that llama.cpp writes."""

import json
from pathlib import Path

import pytest

from pagedcache import KVCache
from pagedcache.serving import generate

pytestmark = [pytest.mark.cuda_offline, pytest.mark.usefixtures("cxx")]

RUNS = json.loads((Path(__file__).parents[2] / "data" / "smollm2_greedy.json").read_text())["runs"]
SHORT = [run for run in RUNS if "prompt" in run]
FEW = 8


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_greedy_tokens(smollm2, dtype):
    with KVCache(smollm2[0].cache_spec(dtype=dtype), num_blocks=9, backend="cuda-emulated") as cache:
        prompts = [run["prompt_tokens"] for run in SHORT]
        result = generate(*smollm2, prompts, cache, max_tokens=FEW, ends=frozenset())
        cache.check()
    assert [c.tokens for c in result.completions] == [run["greedy_tokens"][:FEW] for run in SHORT]
