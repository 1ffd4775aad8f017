"""How the texts of an engine end, arrive in pieces and are cancelled; guesses change none."""

import numpy as np
import pytest
from engine_setting import DRAWN, PROMPTS, joined, tokens_of

from pagedcache.serving import Finish, PromptLookup


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
