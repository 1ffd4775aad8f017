"""The engine on a model with states: texts depend on every token before them, so that any mix-up would show."""

from dataclasses import dataclass

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache, LayerGroup
from pagedcache.serving import Engine, PromptLookup

NEW = 24  # tokens of a text
PROMPTS = [np.random.default_rng(length).integers(0, 280, length).tolist() for length in (3, 30, 11, 19, 1)]


@dataclass(frozen=True)
class Sizes:
    context: int = 200
    vocab: int = 280


class RecurrentModel:
    """A layer with K and V that nobody reads, and one whose state is all that the next token depends on."""

    config = Sizes()
    spec = CacheSpec(2, 1, 8, block_size=4, groups=[LayerGroup(1), LayerGroup(1, "state", state_nbytes=600)])

    def after(self, state, tokens):
        """States after each of the tokens."""
        states = [state]
        for token in tokens:
            states.append((states[-1] * 31 + token * 7 + np.arange(150, dtype=np.uint32)).astype(np.uint32))
        return states[1:]

    def next(self, state):
        return int(state[-1] // 7 % self.config.vocab)

    def forward(self, tokens, step, cache, *, at=None):
        ends = step.qo_indptr
        states = []
        for row, before in enumerate(cache.read_state(1, step).view(np.uint32)):
            states += self.after(before, np.asarray(tokens)[ends[row] : ends[row + 1]].tolist())
        cache.write_state(1, step, [states[end - 1] for end in ends[1:]])
        wanted = ends[1:] - 1 if at is None else np.asarray(at)
        logits = np.zeros((len(wanted), self.config.vocab), np.float32)
        logits[np.arange(len(wanted)), [self.next(states[k]) for k in wanted]] = 1
        return logits


@pytest.fixture(scope="module")
def expected():
    model, texts = RecurrentModel(), []
    for prompt in PROMPTS:
        state, text = model.after(np.zeros(150, np.uint32), prompt)[-1], []
        for _ in range(NEW):
            text.append(model.next(state))
            [state] = model.after(state, text[-1:])
        texts.append(text)
    return texts


def run(num_blocks, *, n=1, flight=1, **options):
    with KVCache(RecurrentModel.spec, num_blocks=num_blocks, steps_in_flight=flight) as cache:
        with Engine(RecurrentModel(), cache, **options) as engine:
            requests = [engine.submit(prompt, max_tokens=NEW, n=n) for prompt in PROMPTS]
            engine.run()
        cache.check()
        assert cache.stats().sequences == 0 == sum(cache.stats().group_blocks)
        assert cache.pool.num_free == num_blocks
    return [[completion.tokens for completion in request.completions] for request in requests], requests


@pytest.mark.parametrize("step_tokens", [3, 64])
def test_prompts_in_pieces(expected, step_tokens):
    assert run(400, step_tokens=step_tokens)[0] == [[text] for text in expected]


@pytest.mark.parametrize("preemption", ["recompute", "swap", "never"])
@pytest.mark.parametrize("flight", [1, 2])
def test_short_of_blocks(expected, preemption, flight):
    texts, requests = run(36, preemption=preemption, flight=flight)
    assert texts == [[text] for text in expected]
    assert any(request.preemptions for request in requests) == (preemption != "never")


def test_samples(expected):
    assert run(400, n=3)[0] == [3 * [text] for text in expected]


def test_guesses_are_refused():
    """Some of them would have to be rolled back."""
    with KVCache(RecurrentModel.spec, num_blocks=40) as cache, pytest.raises(ValueError, match="leave draft out"):
        Engine(RecurrentModel(), cache, draft=PromptLookup())
