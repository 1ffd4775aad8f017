"""The engine when something goes wrong: afterwards texts and cache are as if nothing had."""

import numpy as np
import pytest
from engine_setting import DRAWN, PROMPTS, tokens_of

from pagedcache import CacheSpec, KVCache
from pagedcache.errors import OutOfSequences
from pagedcache.replay import SimulatedModel
from pagedcache.serving import Engine, Finish, PromptLookup, _line
from pagedcache.testing import DelayedBackend

KINDS = {
    "greedy": {},
    "samples": {"n": 3},
    "drawn": {"sampling": DRAWN, "n": 2},
    "beams": {"beams": 3, "n": 2},
    "stop": {"stop": "\0"},
}


def run_through(engine, error, most=2000):
    """Step until all is done, whatever is raised on the way; return how often it was."""
    raised = 0
    for _ in range(most):
        if engine.idle:
            return raised
        try:
            engine.step()
        except error:
            raised += 1
    raise AssertionError(f"{engine.num_running} run and {engine.num_waiting} wait after {most} steps")


def failing(call, share, error, *, late):
    """Raise in so many of all calls, at random, before or after the real one."""
    random = np.random.default_rng(0)

    def wrapped(*arguments, **options):
        fails = random.random() < share
        if fails and not late:
            raise error
        result = call(*arguments, **options)
        if fails:
            raise error
        return result

    return wrapped


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("verb", "late"),
    [
        *((verb, False) for verb in ("admit", "extend", "commit", "fork", "reorder", "swap_out", "swap_in")),
        ("commit", True),
        ("forward", False),
        ("forward", True),
    ],
)
def test_what_raises_changes_no_text(engine_of, cache_of, tiny, monkeypatch, kind, verb, late):
    plain = engine_of(cache_of(num_blocks=200))
    expected = [plain.submit(prompt, max_tokens=12, **KINDS[kind]) for prompt in PROMPTS]
    plain.run()
    cache = cache_of(num_blocks=26)
    owner = tiny[0] if verb == "forward" else cache
    monkeypatch.setattr(owner, verb, failing(getattr(owner, verb), 0.3, KeyboardInterrupt, late=late))
    engine = engine_of(cache, preemption="swap", draft=PromptLookup(shortest=1), step_tokens=16)
    requests = [engine.submit(prompt, max_tokens=12, **KINDS[kind]) for prompt in PROMPTS]
    raised = run_through(engine, KeyboardInterrupt)
    assert tokens_of(requests) == tokens_of(expected)
    assert raised or verb in ("fork", "reorder", "swap_out", "swap_in")
    again = engine.submit([1], n=cache.sequences.max_sequences, max_tokens=1)
    monkeypatch.undo()
    engine.run()
    assert again.completions[0].finish is Finish.LENGTH, "nothing is promised to anyone any more"


@pytest.mark.parametrize("block_size", [1, 4])
def test_full_pool_in_which_a_fork_fails(engine_of, cache_of, monkeypatch, block_size):
    """What the others had computed in that step is published; to compute it again must not take more blocks."""
    cache = cache_of(num_blocks=16 // block_size, block_size=block_size)
    engine = engine_of(cache, preemption="never")
    monkeypatch.setattr(cache, "fork", failing(cache.fork, 1.0, MemoryError, late=False))
    requests = [engine.submit([token] * 3, max_tokens=2, n=n) for token, n in ((1, 2), (2, 1), (3, 1))]
    with pytest.raises(MemoryError):
        engine.step()
    monkeypatch.undo()
    engine.run()
    assert [len(tokens) for tokens in tokens_of(requests)] == [2] * 4


def test_sequences_taken_by_others_are_waited_for(engine_of, cache_of):
    cache = cache_of(max_sequences=3)
    engine = engine_of(cache, step_tokens=3)
    request = engine.submit([1] * 6, n=3, max_tokens=5)
    engine.step()
    mine = cache.admit([[9]]).ids
    with pytest.raises(OutOfSequences):
        engine.run()
    cache.release(mine)
    engine.run()
    assert [len(tokens) for tokens in tokens_of([request])] == [5, 5, 5]
    assert len({tuple(tokens) for tokens in tokens_of([request])}) == 1


def test_error_in_on_prefill_keeps_no_promises(engine_of, cache_of):
    def fail(done, total):
        raise RuntimeError("the caller's")

    cache = cache_of()
    engine = engine_of(cache, on_prefill=fail, preemption="never")
    for _ in range(2):
        requests = [engine.submit(prompt, max_tokens=20) for prompt in (PROMPTS[1], PROMPTS[3])]
        run_through(engine, RuntimeError)
    assert all(request.started is not None for request in requests)
    fits = engine.submit([1], n=cache.sequences.max_sequences // 4, max_tokens=1)
    run_through(engine, RuntimeError)
    assert fits.completions[0].finish is Finish.LENGTH


def test_finished_requests_are_returned_though_a_callback_raised(engine_of, cache_of):
    def fail(piece):
        if piece.last:
            raise RuntimeError("the caller's")

    engine = engine_of(cache_of())
    request = engine.submit([1], max_tokens=1, on_piece=fail)
    with pytest.raises(RuntimeError, match="the caller's"):
        engine.step()
    assert not engine.idle
    assert engine.step() == [request]
    assert engine.idle


def test_stream_that_never_began_is_given_up_too(engine_of, cache_of):
    engine = engine_of(cache_of())
    engine.stream([1]).close()
    assert engine.num_waiting == 0


@pytest.mark.parametrize("options", [{}, {"n": 3}, {"beams": 2}], ids=str)
@pytest.mark.parametrize("preemption", ["recompute", "swap", "never"])
@pytest.mark.parametrize("block_size", [2, 4])
def test_asynchronous_backend(engine_of, tiny, preemption, options, block_size):
    """Blocks come free when work is done, and nobody but the engine asks whether it is."""
    spec = tiny[0].cache_spec(block_size=block_size)
    with KVCache(spec, num_blocks=80 // block_size, backend=DelayedBackend(), steps_in_flight=2) as cache:
        attend = cache.attend

        def read(*arguments, **options):
            out = attend(*arguments, **options)
            cache.backend.synchronize()  # the model reads it
            return out

        cache.attend = read
        engine = engine_of(cache, preemption=preemption)
        requests = [engine.submit(prompt[:20], max_tokens=12, **options) for prompt in PROMPTS * 2]
        run_through(engine, ())
        assert {each.finish for request in requests for each in request.completions} == {Finish.LENGTH}
        again = engine.submit([7] * 20, max_tokens=80 - 20, n=1)
        engine.run()
        assert again.completions[0].finish is Finish.LENGTH
        assert all(not request.preemptions for request in requests) or preemption != "never"


def test_swapping_needs_bytes_to_move():
    with (
        KVCache(CacheSpec(1, 1, 8), num_blocks=8, storage="metadata") as cache,
        pytest.raises(ValueError, match="preemption is 'swap', and the cache is metadata only"),
    ):
        Engine(SimulatedModel(100, 10**9, 256), cache, preemption="swap")


def test_prompts_next_to_shorter_ones_in_long_blocks():
    """The first block of a prompt is longer than the texts that are being computed."""
    model = SimulatedModel(1000, 10**9, 256)
    with KVCache(CacheSpec(1, 1, 8, block_size=128), num_blocks=20, storage="metadata") as cache:
        engine = Engine(model, cache, step_tokens=16)
        short = engine.submit([3] * 30, max_tokens=2)
        engine.step()
        long = engine.submit([3] * 300, max_tokens=2)
        engine.step()
        assert long.started is not None, "it has nothing to wait for"
        engine.run()
        assert tokens_of([short, long]) == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    "guess", [[5, -1, 6], [999], np.array([1 << 40]), [], np.zeros(0), np.array([7] * 500, np.uint8)], ids=str
)
def test_guesses_that_no_model_can_compute(engine_of, cache_of, guess):
    plain, engine = engine_of(cache_of()), engine_of(cache_of(), draft=lambda tokens: guess)
    requests = [each.submit(PROMPTS[1], max_tokens=20) for each in (plain, engine)]
    plain.run()
    engine.run()
    assert requests[0].completions[0].tokens == requests[1].completions[0].tokens


def test_decode_tokens_are_those_that_were_stored(engine_of, cache_of):
    plain = engine_of(cache_of())
    request = plain.submit(PROMPTS[1], max_tokens=40)
    plain.run()
    text = [*request.prompt, *request.completions[0].tokens]
    engine = engine_of(cache_of(), draft=lambda tokens: text[len(tokens) : len(tokens) + 3])
    engine.submit(PROMPTS[1], max_tokens=40)
    engine.run()
    assert engine.report.accepted_tokens > 0
    assert engine.report.decode_tokens == 39, "all but the first, which comes of the prompt"


def test_guesses_that_are_no_tokens(engine_of, cache_of):
    engine = engine_of(cache_of(), draft=lambda tokens: [1.5])
    request = engine.submit(PROMPTS[1], max_tokens=20)
    with pytest.raises(TypeError, match="the drafter returned float64"):
        engine.run()
    engine.cancel(request)


def test_drafter_cannot_change_the_text(engine_of, cache_of):
    def spoil(tokens):
        tokens[:] = 0

    engine = engine_of(cache_of(), draft=spoil)
    request = engine.submit(PROMPTS[1], max_tokens=20)
    with pytest.raises(ValueError, match="read-only"):
        engine.run()
    engine.cancel(request)


def test_beams_name_the_request_whose_logits_are_not_finite(engine_of, cache_of, tiny, monkeypatch):
    whole = tiny[0].forward

    def masked(*arguments, **options):
        logits = whole(*arguments, **options)
        logits[:, 5] = -np.inf
        return logits

    engine, plain = engine_of(cache_of()), engine_of(cache_of())
    expected = plain.submit(PROMPTS[1], beams=2, max_tokens=5)
    plain.run()
    request = engine.submit(PROMPTS[1], beams=2, max_tokens=5)
    engine.step()
    monkeypatch.setattr(tiny[0], "forward", masked)
    with pytest.raises(ValueError, match="request 0: the logit of token 5 is -inf"):
        engine.step()
    monkeypatch.undo()
    engine.run()
    assert tokens_of([request]) == tokens_of([expected])


@pytest.mark.parametrize("ends", ["finishes", "is cancelled"])
def test_work_of_an_end_does_not_grow_with_those_that_wait(ends, monkeypatch):
    """Counted in looks at keys: a search in order takes some dozen, a walk along the line thousands."""
    looks = 0
    key = _line._key

    def counted(sequence):
        nonlocal looks
        looks += 1
        return key(sequence)

    with KVCache(CacheSpec(1, 1, 8), num_blocks=8, storage="metadata", max_sequences=1) as cache:
        engine = Engine(SimulatedModel(100, 10**9, 256), cache)
        requests = [engine.submit([3], max_tokens=2) for _ in range(3000)]
        engine.step()
        monkeypatch.setattr(_line, "_key", counted)
        engine._scheduler.waiting = _Counting(engine._scheduler.waiting, walks := [])
        if ends == "finishes":
            engine.step()
        else:
            engine.cancel(requests[1500])
        assert looks < 100
        assert not walks
        engine._scheduler.waiting = _line.Line(engine._scheduler.waiting)
        engine.close()


class _Counting(_line.Line):
    """A list that takes down who walks along it."""

    def __init__(self, items, walks):
        super().__init__(items)
        self._walks = walks

    def __iter__(self):
        self._walks.append("iter")
        return super().__iter__()

    def __contains__(self, item):
        self._walks.append("in")
        return super().__contains__(item)

    def copy(self):
        self._walks.append("copy")
        return super().copy()

    def remove(self, item):
        self._walks.append("remove")
        return super().remove(item)
