"""The engine on a tiny model: whoever runs along and in whatever order, texts are the same."""

import numpy as np
import pytest
from engine_setting import DRAWN, PROMPTS, joined, tokens_of

from pagedcache.serving import Engine, Finish, PromptLookup


def test_static_batches_run_to_their_end(engine_of, cache_of):
    engine = engine_of(cache_of(max_sequences=2), static=True)
    requests = [engine.submit([token], max_tokens=count) for token, count in ((1, 2), (2, 9), (3, 2))]
    engine.run()
    assert requests[0].finished < requests[1].finished <= requests[2].started


def test_continuous_batches_take_in_who_fits(engine_of, cache_of):
    engine = engine_of(cache_of(max_sequences=2))
    requests = [engine.submit([token], max_tokens=count) for token, count in ((1, 2), (2, 9), (3, 2))]
    engine.run()
    assert requests[2].finished < requests[1].finished


def test_requests_may_come_at_any_time(engine_of, cache_of, alone):
    engine = engine_of(cache_of())
    requests = []
    for prompt in PROMPTS:
        requests.append(engine.submit(prompt, max_tokens=20))
        engine.step()
    engine.run()
    assert tokens_of(requests) == [alone(prompt)[0] for prompt in PROMPTS]


def test_step_returns_what_it_finished(engine_of, cache_of):
    engine = engine_of(cache_of())
    requests = [engine.submit([token], max_tokens=count) for token, count in ((1, 1), (2, 2), (3, 2))]
    assert engine.step() == requests[:1]
    assert set(engine.step()) == set(requests[1:])
    assert engine.step() == []


@pytest.mark.parametrize("preemption", ["recompute", "never"])
def test_beams_next_to_others(engine_of, cache_of, alone, preemption):
    one = engine_of(cache_of())
    expected = one.submit(PROMPTS[3], beams=3, n=2, max_tokens=20)
    one.run()
    engine = engine_of(cache_of(num_blocks=40), preemption=preemption)
    requests = [engine.submit(prompt, max_tokens=20) for prompt in PROMPTS]
    found = [engine.submit(PROMPTS[3], beams=3, n=2, max_tokens=20) for _ in range(2)]
    engine.run()
    assert tokens_of(found) == 2 * tokens_of([expected])
    assert [each.score for each in found[1].completions] == pytest.approx(
        [each.score for each in expected.completions], abs=1e-4
    )
    assert tokens_of(requests) == [alone(prompt)[0] for prompt in PROMPTS]


def test_cancelled_beams(engine_of, cache_of):
    engine = engine_of(cache_of())
    request = engine.submit(PROMPTS[3], beams=3, n=2, max_tokens=20)
    for _ in range(4):
        engine.step()
    engine.cancel(request)
    assert engine.step() == [request]
    assert engine.idle
    assert [len(completion.tokens) for completion in request.completions] == [4, 4]
    assert {completion.finish for completion in request.completions} == {Finish.CANCELLED}


@pytest.mark.parametrize(
    ("prompt", "options", "error", "message"),
    [
        ([], {}, ValueError, "request 0 has 0 tokens; the model takes 1 to 255"),
        ([1] * 256, {}, ValueError, "request 0 has 256 tokens; the model takes 1 to 255"),
        ([1, 280], {}, ValueError, "token ids reach from 1 to 280; the vocabulary ends at 279"),
        ([1, -1], {}, ValueError, "token ids reach from -1 to 1"),
        ([1.5], {}, TypeError, "a prompt is of float64; token ids are integers"),
        ([[1, 2]], {}, ValueError, r"one row of token ids, not an array of shape \(1, 2\)"),
        ([1], {"max_tokens": 0}, ValueError, "max_tokens is 0; it must be at least 1"),
        ([1], {"n": 0}, ValueError, "n is 0; it must be at least 1"),
        ([1], {"beams": 0}, ValueError, "beams is 0; it must be at least 1"),
        ([1], {"beams": 2, "n": 3}, ValueError, "n is 3; 2 beams find at most 2 texts"),
        ([1], {"beams": 2, "stop": "x"}, ValueError, "leave out sampling and stop"),
        ([1], {"beams": 2, "sampling": DRAWN}, ValueError, "leave out sampling and stop"),
        ([1], {"stop": ["x", ""]}, ValueError, "stop holds an empty string"),
    ],
)
def test_bad_requests_are_refused(engine_of, cache_of, prompt, options, error, message):
    engine = engine_of(cache_of())
    with pytest.raises(error, match=message):
        engine.submit(prompt, **options)
    assert engine.idle
    assert engine.report.prompt_tokens == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_tokens": 0}, "step_tokens is 0; it must be at least 1"),
        ({"preemption": "perhaps"}, "preemption is 'perhaps'; it must be 'recompute', 'swap' or 'never'"),
        ({"watermark": 1.0}, "watermark is 1.0; it is a share of the blocks, from 0 to below 1"),
    ],
)
def test_bad_options_are_refused(engine_of, cache_of, options, message):
    with pytest.raises(ValueError, match=message):
        engine_of(cache_of(), **options)


def test_stop_strings_need_a_tokenizer(tiny, cache_of):
    with pytest.raises(ValueError, match="an engine without a tokenizer has no text"):
        Engine(tiny[0], cache_of()).submit([1], stop="x")


def test_logits_that_are_no_numbers_name_the_request(engine_of, cache_of, tiny, monkeypatch):
    engine = engine_of(cache_of())
    requests = [engine.submit(prompt, max_tokens=20) for prompt in PROMPTS[:3]]
    whole = tiny[0].forward

    def spoilt(*arguments, **options):
        logits = whole(*arguments, **options)
        logits[1] = np.nan
        return logits

    monkeypatch.setattr(tiny[0], "forward", spoilt)
    with pytest.raises(ValueError, match="request 1: the largest logit is nan"):
        engine.step()
    engine.cancel(requests[1])
    monkeypatch.undo()
    engine.run()
    assert requests[2].completions[0].finish is Finish.LENGTH


def test_error_in_a_callback_loses_nothing(engine_of, cache_of, alone):
    told = []

    def fail_once(piece):
        told.append(piece)
        if len(told) == 2:
            raise RuntimeError("the caller's")

    engine = engine_of(cache_of())
    requests = [engine.submit(prompt, max_tokens=20, on_piece=fail_once) for prompt in PROMPTS]
    with pytest.raises(RuntimeError, match="the caller's"):
        engine.run()
    engine.run()
    assert tokens_of(requests) == [alone(prompt)[0] for prompt in PROMPTS]
    for request in requests:
        mine = [piece for piece in told if piece.completion is request.completions[0]]
        assert joined(mine) == request.completions[0].tokens


def test_close_cancels(engine_of, cache_of):
    with engine_of(cache_of(num_blocks=22), preemption="swap") as engine:
        requests = [engine.submit(prompt, max_tokens=20, n=2) for prompt in PROMPTS]
        for _ in range(12):
            engine.step()
    assert all(request.done for request in requests)


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_events(engine_of, cache_of, seed):
    """Submissions, cancellations and steps at random, in a cache that is always too small."""
    random = np.random.default_rng(seed)
    cache = cache_of(num_blocks=24, max_sequences=6)
    engine = engine_of(
        cache,
        preemption=["recompute", "swap", "never"][seed % 3],
        step_tokens=int(random.integers(1, 40)),
        watermark=float(random.choice([0, 0.1])),
        draft=PromptLookup(shortest=1) if seed % 2 else None,
        ends=[3, 77],
    )
    requests = []
    for _ in range(120):
        event = random.random()
        if event < 0.3:
            prompt = random.integers(0, 4, int(random.integers(1, 30))).tolist()
            kind = int(random.integers(4))
            options = [{}, {"n": 3}, {"beams": 2}, {"sampling": DRAWN, "n": 2}][kind]
            requests.append(engine.submit(prompt, max_tokens=int(random.integers(1, 12)), **options))
        elif event < 0.35 and requests:
            engine.cancel(requests[int(random.integers(len(requests)))])
        else:
            engine.step()
            cache.check()
    engine.run()
    finishes = {completion.finish for request in requests for completion in request.completions}
    assert all(request.done for request in requests)
    assert finishes <= {Finish.END, Finish.LENGTH, Finish.CANCELLED}
    assert engine.num_running == engine.num_waiting == 0
