"""Beam search with SmolLM2-135M: what full recomputation finds, in the memory of little more than one sequence.

The percentages are printed with ``pytest -m slow -rP tests/slow/test_smollm2_beams.py``.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from pagedcache import KVCache
from pagedcache.serving import beam_search, generate

pytestmark = pytest.mark.slow

RUNS = json.loads((Path(__file__).parents[1] / "data" / "smollm2_greedy.json").read_text())["runs"]
PROMPTS = [run["prompt_tokens"][:256] for run in RUNS if len(run["prompt_tokens"]) >= 256]
BEAMS, NEW = 4, 32


class NoCache:
    """Attention over the tokens of one step alone, all of one length, dense and in float64."""

    def __init__(self, rows, length):
        self.positions = np.tile(np.arange(length), rows)
        self.qo_indptr = np.arange(rows + 1) * length
        self._shape = rows, length

    def attend(self, layer, q, k, v, step):
        rows, length = self._shape
        q, k, v = (each.astype(np.float64).reshape(rows, length, *each.shape[1:]) for each in (q, k, v))
        k, v = (np.repeat(each, q.shape[2] // each.shape[2], axis=2) for each in (k, v))
        q, k, v = (each.transpose(0, 2, 1, 3) for each in (q, k, v))  # [rows, heads, length, head_dim]
        scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]) + np.triu(np.full((length, length), -np.inf), 1)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        seen = weight / weight.sum(-1, keepdims=True) @ v
        return seen.transpose(0, 2, 1, 3).reshape(rows * length, q.shape[1], -1).astype(np.float32)


def recomputed_beams(model, prompt, new):
    """(sum of log-probabilities, tokens) of the beams after `new` tokens, best first, without any cache."""
    live = [(0.0, [])]
    for _ in range(new):
        texts = np.array([prompt + tokens for _, tokens in live])
        plain = NoCache(*texts.shape)
        logits = model.forward(texts.ravel(), plain, plain).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        sums = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)) + np.array([[total] for total, _ in live])
        best = np.argsort(-sums, axis=None, kind="stable")[:BEAMS]
        rows, tokens = np.unravel_index(best, sums.shape)
        live = [(sums[row, token], [*live[row][1], int(token)]) for row, token in zip(rows, tokens, strict=True)]
    return live


def search(smollm2, prompt, block_size, new=NEW, **options):
    spec = smollm2[0].cache_spec(block_size=block_size)
    with KVCache(spec, num_blocks=130) as cache, KVCache(spec, num_blocks=130) as other:
        found = beam_search(*smollm2, [prompt], cache, beams=BEAMS, max_tokens=new, ends=frozenset(), **options)
        generate(*smollm2, [prompt], other, max_tokens=new, ends=frozenset())
        cache.check()
        return found, 100 * cache.stats().peak_used / other.stats().peak_used


def test_equal_to_full_recomputation(smollm2):
    prompt, new = PROMPTS[0][:96], 12  # recomputation costs the square; tests/serving has 256 and 32 on a tiny model
    found, _ = search(smollm2, prompt, 8, new, n=BEAMS, length_penalty=0.0)
    expected = recomputed_beams(smollm2[0], prompt, new)
    assert [each.tokens for each in found.completions] == [tokens for _, tokens in expected]
    assert [each.score for each in found.completions] == pytest.approx([total for total, _ in expected], abs=1e-2)


@pytest.mark.parametrize("prompt", range(len(PROMPTS)))
@pytest.mark.parametrize("block_size", [4, 8])
def test_at_most_125_percent_of_one_sequence(smollm2, prompt, block_size):
    """Blocks of 16 tokens may take up to 133: the 32 new tokens are only two of them, and none is shared in part."""
    _, percent = search(smollm2, PROMPTS[prompt], block_size)
    print(f"prompt {prompt}, blocks of {block_size}: {percent:.0f} % of one sequence")
    assert percent <= 125
