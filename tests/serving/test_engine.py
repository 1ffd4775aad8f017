"""The engine on a tiny model: whoever runs along, whoever gives way, texts are the same and the cache is left clean."""

import numpy as np
import pytest

from pagedcache.errors import OutOfBlocks, OutOfSequences
from pagedcache.serving import Engine, Finish, PromptLookup, Sampling

PROMPTS = [[5, 6, 7], list(range(40)), [9], list(range(40, 73)), [1, 2, 3] * 8]
DRAWN = Sampling(temperature=1.0, seed=3)


@pytest.fixture
def engine_of(tiny):
    def make(cache, **options):
        return Engine(*tiny[:1], cache, tiny[1], **{"ends": ()} | options)

    return make


def tokens_of(requests):
    return [completion.tokens for request in requests for completion in request.completions]


def joined(pieces):
    return [token for piece in pieces for token in piece.tokens]


@pytest.fixture
def alone(engine_of, cache_of):
    """Tokens of each prompt, run alone: 20 greedy ones."""

    def run(prompt, **options):
        engine = engine_of(cache_of())
        request = engine.submit(prompt, max_tokens=20, **options)
        engine.run()
        return tokens_of([request])

    return run


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("preemption", ["recompute", "swap", "never"])
@pytest.mark.parametrize("sampling", [None, DRAWN], ids=["greedy", "drawn"])
def test_short_of_blocks_texts_are_the_same(engine_of, cache_of, preemption, sampling):
    """Five texts of up to 60 tokens in 18 blocks of 4."""
    roomy = engine_of(cache_of(num_blocks=200))
    expected = [roomy.submit(prompt, max_tokens=20, n=2, sampling=sampling) for prompt in PROMPTS]
    roomy.run()
    engine = engine_of(cache_of(num_blocks=22), preemption=preemption)
    requests = [engine.submit(prompt, max_tokens=20, n=2, sampling=sampling) for prompt in PROMPTS]
    engine.run()
    assert tokens_of(requests) == tokens_of(expected)
    assert all(completion.finish is Finish.LENGTH for request in requests for completion in request.completions)
    assert any(request.preemptions for request in requests) == (preemption != "never")
    assert not any(request.preemptions for request in expected)


def test_the_last_in_line_gives_way(engine_of, cache_of):
    engine = engine_of(cache_of(num_blocks=14), watermark=0)
    first, second, urgent = (
        engine.submit([token] * 9, max_tokens=20, priority=p) for token, p in ((1, 0), (2, 0), (3, 5))
    )
    engine.run()
    assert (first.preemptions, urgent.preemptions) == (0, 0)
    assert second.preemptions > 0
    assert urgent.finished < second.finished
    assert first.finished < second.finished


def test_what_is_recomputed_is_found_in_the_prefix_cache(engine_of, cache_of):
    cache = cache_of(num_blocks=16)
    engine = engine_of(cache, watermark=0)
    requests = [engine.submit([token] * 16, max_tokens=20) for token in (1, 2)]
    engine.run()
    assert requests[1].preemptions > 0
    assert cache.stats().hit_tokens >= 16


@pytest.mark.parametrize("share", [True, False])
def test_prefixes_are_shared_or_not(engine_of, cache_of, alone, share):
    cache = cache_of(num_blocks=24)
    for _ in range(2):
        engine = engine_of(cache, share_prefixes=share)
        requests = [engine.submit(PROMPTS[1], max_tokens=20) for _ in range(3)]
        engine.run()
        assert tokens_of(requests) == 3 * alone(PROMPTS[1])
    assert [request.found_tokens for request in requests] == [36 * share] * 3


def test_only_what_is_shared_is_waited_for(engine_of, cache_of):
    """Two prompts have the first 8 of 40 tokens in common, a third the first 24; steps compute 12 tokens."""
    engine = engine_of(cache_of(), step_tokens=12, watermark=0)
    text = PROMPTS[1]
    prompts = [text, text[:8] + [200 + k for k in range(32)], text[:24] + [240 + k for k in range(16)]]
    requests = [engine.submit(prompt, max_tokens=2) for prompt in prompts]
    running = []
    for _ in range(3):
        engine.step()
        running.append(engine.num_running)
    assert running == [1, 2, 3], "the second waits for 8 tokens, the third for 24"
    engine.run()
    assert [request.found_tokens for request in requests] == [0, 8, 24]


def test_watermark_keeps_blocks_for_those_who_run(engine_of, cache_of):
    """The second prompt fits next to the first, but not with half the blocks left free."""
    engine = engine_of(cache_of(num_blocks=20), watermark=0.5)
    first, second = (engine.submit([token] * 20, max_tokens=4) for token in (1, 2))
    engine.step()
    assert engine.num_running == 1
    engine.run()
    assert second.started >= first.finished
    assert not second.preemptions


@pytest.mark.parametrize(("num_blocks", "running"), [(18, 3), (16, 2)])
def test_a_block_is_left_for_each_who_runs(engine_of, cache_of, num_blocks, running):
    """Prompts of five blocks: after two of them the third would leave three free, or one."""
    engine = engine_of(cache_of(num_blocks=num_blocks), watermark=0)
    for token in (1, 2, 3):
        engine.submit([token] * 19, max_tokens=3)
    engine.step()
    assert engine.num_running == running
    engine.run()


def test_what_others_hold_is_not_waited_for(engine_of, cache_of):
    cache = cache_of(num_blocks=20)
    engine = engine_of(cache)
    request = engine.submit([1] * 40, max_tokens=20)
    mine = cache.admit([list(range(60))]).ids
    engine.run()
    assert [completion.finish for completion in request.completions] == [Finish.REFUSED]
    assert request.done
    cache.release(mine)
    again = engine.submit([1] * 40, max_tokens=20)
    engine.run()
    assert again.completions[0].finish is Finish.LENGTH


def test_blocks_taken_while_it_runs_end_it_with_what_is_there(engine_of, cache_of, alone):
    cache = cache_of(num_blocks=20)
    engine = engine_of(cache)
    request = engine.submit(PROMPTS[1], max_tokens=20)
    engine.step()
    mine = cache.admit([list(range(100, 136))]).ids
    engine.run()
    (completion,) = request.completions
    assert completion.finish is Finish.REFUSED
    assert 0 < len(completion.tokens) < 20
    assert completion.tokens == alone(PROMPTS[1])[0][: len(completion.tokens)]
    cache.release(mine)


@pytest.mark.parametrize("preemption", ["recompute", "never"])
def test_what_never_fits_is_refused_at_once(engine_of, cache_of, preemption):
    cache = cache_of(num_blocks=13)
    engine = engine_of(cache, preemption=preemption)
    with pytest.raises(OutOfBlocks, match=r"request 0 may need 15 blocks \(1 x up to 40 \+ 20 tokens\), 13 are free"):
        engine.submit(PROMPTS[1], max_tokens=20)
    assert engine.idle
    assert cache.stats().query_tokens == 0


def test_samples_may_be_more_than_fit_at_once_if_they_can_be_preempted(engine_of, cache_of, alone):
    with pytest.raises(OutOfBlocks, match=r"\(4 x up to 40 \+ 20 tokens\)"):
        engine_of(cache_of(num_blocks=22), preemption="never").submit(PROMPTS[1], n=4, max_tokens=20)
    engine = engine_of(cache_of(num_blocks=22))
    request = engine.submit(PROMPTS[1], n=4, max_tokens=20, sampling=DRAWN)
    engine.run()
    assert tokens_of([request]) == alone(PROMPTS[1], n=4, sampling=DRAWN)
    assert request.preemptions > 0


def test_more_samples_than_sequences_are_refused(engine_of, cache_of):
    with pytest.raises(OutOfSequences, match="3 sequences go on from one prompt; the cache has room for 2"):
        engine_of(cache_of(max_sequences=2)).submit([1], n=3)


# -- order ----------------------------------------------------------------------------------------


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


# -- ends of texts --------------------------------------------------------------------------------


def test_end_tokens(engine_of, cache_of, alone):
    expected = alone(PROMPTS[1])[0]
    engine = engine_of(cache_of(), ends=[expected[5]])
    ended, ignoring = (
        engine.submit(PROMPTS[1], max_tokens=20),
        engine.submit(PROMPTS[1], max_tokens=20, ignore_ends=True),
    )
    engine.run()
    assert ended.completions[0].tokens == expected[: expected.index(expected[5])]
    assert ended.completions[0].finish is Finish.END
    assert ignoring.completions[0].tokens == expected


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_stop_strings(engine_of, cache_of, tiny, alone, size, follow):
    tokens = alone(PROMPTS[1])[0]
    text = tiny[1].decode(tokens)
    stop = text[8 : 8 + size]
    pieces = []
    engine = engine_of(cache_of())
    request = engine.submit(
        PROMPTS[1], max_tokens=20, stop=["\0never", stop], on_piece=pieces.append if follow else None
    )
    engine.run()
    (completion,) = request.completions
    assert completion.text == text[: text.find(stop)]
    assert completion.finish is Finish.STOP
    assert completion.tokens == tokens[: len(completion.tokens)]
    assert not follow or "".join(piece.text for piece in pieces) == completion.text


def test_beginning_of_a_stop_string_is_shown_when_it_is_none(engine_of, cache_of, tiny, alone):
    text = tiny[1].decode(alone(PROMPTS[1])[0])
    engine = engine_of(cache_of())
    request = engine.submit(PROMPTS[1], max_tokens=20, stop=text[5:7] + "\0" * 3)
    engine.run()
    assert request.completions[0].text == text


def test_pieces_make_up_the_texts(engine_of, cache_of, tiny):
    pieces = []
    engine = engine_of(cache_of(num_blocks=22), draft=PromptLookup())
    requests = [engine.submit(prompt, max_tokens=20, n=2, sampling=DRAWN, on_piece=pieces.append) for prompt in PROMPTS]
    engine.run()
    for request in requests:
        for completion in request.completions:
            mine = [piece for piece in pieces if piece.completion is completion]
            assert [piece.last for piece in mine] == [False] * (len(mine) - 1) + [True]
            assert joined(mine) == completion.tokens
            assert "".join(piece.text for piece in mine) == completion.text == tiny[1].decode(completion.tokens)


def test_stream(engine_of, cache_of, alone):
    engine = engine_of(cache_of())
    other = engine.submit(PROMPTS[0], max_tokens=20)
    pieces = list(engine.stream(PROMPTS[3], max_tokens=20))
    assert [joined(pieces)] == alone(PROMPTS[3])
    assert tokens_of([other]) == alone(PROMPTS[0]), "it ran along"


def test_stream_that_is_given_up_is_cancelled(engine_of, cache_of):
    engine = engine_of(cache_of())
    stream = engine.stream(PROMPTS[3], max_tokens=20)
    completion = next(stream).completion
    stream.close()
    assert completion.finish is Finish.CANCELLED
    assert engine.num_running == engine.num_waiting == 0
    engine.run()
    assert engine.idle


@pytest.mark.parametrize("steps", [0, 1, 3, 12])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_cancel_at_any_time(engine_of, cache_of, alone, steps, preemption):
    """While it waits, is computed, writes, or is preempted."""
    engine = engine_of(cache_of(num_blocks=22), preemption=preemption, step_tokens=16)
    requests = [engine.submit(prompt, max_tokens=20, n=2) for prompt in PROMPTS]
    for _ in range(steps):
        engine.step()
    for request in requests[1::2]:
        engine.cancel(request)
        engine.cancel(request)
    engine.run()
    assert all(each.finish is Finish.CANCELLED for each in requests[1].completions + requests[3].completions)
    for request in requests:
        expected = alone(request.prompt)[0]
        for completion in request.completions:
            assert completion.tokens == expected[: len(completion.tokens)]


def test_callback_may_cancel_and_submit(engine_of, cache_of, alone):
    engine = engine_of(cache_of())
    requests = []

    def chain(piece):
        if len(piece.completion.tokens) == 3 and not piece.last:
            requests.append(engine.submit(PROMPTS[0], max_tokens=20))
            engine.cancel(requests[0])

    requests.append(engine.submit(PROMPTS[1], max_tokens=20, on_piece=chain))
    engine.run()
    assert [each.completions[0].finish for each in requests] == [Finish.CANCELLED, Finish.LENGTH]
    assert tokens_of(requests[1:]) == alone(PROMPTS[0])


# -- guesses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [22, 200])
@pytest.mark.parametrize("sampling", [None, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", ["lookup", "right", "wrong", "half"])
def test_guesses_change_no_text(engine_of, cache_of, num_blocks, sampling, kind):
    plain = engine_of(cache_of(num_blocks=200))
    expected = [plain.submit(prompt, max_tokens=20, n=2, sampling=sampling) for prompt in PROMPTS]
    plain.run()
    known = [[*request.prompt, *completion.tokens] for request in expected for completion in request.completions]

    def oracle(tokens):
        text = next(text for text in known if text[: len(tokens)] == tokens.tolist())
        guess = np.array(text[len(tokens) : len(tokens) + 4], np.int32)
        if kind == "wrong":
            return (guess + 1) % 280
        return guess if kind == "right" else np.where(np.arange(len(guess)) < 2, guess, (guess + 1) % 280)

    engine = engine_of(cache_of(num_blocks=num_blocks), draft=PromptLookup() if kind == "lookup" else oracle)
    requests = [engine.submit(prompt, max_tokens=20, n=2, sampling=sampling) for prompt in PROMPTS]
    engine.run()
    assert tokens_of(requests) == tokens_of(expected)
    guessed, accepted = engine.report.guessed_tokens, engine.report.accepted_tokens
    assert kind == "lookup" or guessed > 0
    if kind == "right":  # of drawn samples that have parted no further, one may be mistaken for the other
        assert accepted > 0.9 * guessed if sampling else accepted == guessed
    assert kind != "wrong" or accepted == 0


def test_right_guesses_save_steps(engine_of, cache_of):
    steps = {}
    text = list(PROMPTS[1])

    def oracle(tokens):
        return text[len(tokens) : len(tokens) + 4]

    for draft in (None, oracle):
        engine = engine_of(cache_of(), draft=draft)
        request = engine.submit(PROMPTS[1], max_tokens=40)
        while not engine.idle:
            engine.step()
            steps[draft] = steps.get(draft, 0) + 1
        saved = engine.report.accepted_tokens
        text += request.completions[0].tokens
    assert saved > 20
    assert sum(steps.values()) == 2 * steps[None] - saved
    assert steps[None] == 40


# -- beams ----------------------------------------------------------------------------------------


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


# -- errors ---------------------------------------------------------------------------------------


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
