"""The generation loop on a tiny model: however the work is arranged, texts are the same and the cache is left clean."""

import numpy as np
import pytest

from pagedcache.errors import OutOfBlocks, OutOfSequences
from pagedcache.serving import Sampling, generate

PROMPTS = [[5, 6, 7], list(range(40)), [9], list(range(40, 73))]
NO_END = frozenset()


@pytest.fixture
def run(tiny):
    def call(prompts, cache, **options):
        options = {"max_tokens": 12, "ends": NO_END} | options
        return generate(*tiny, prompts, cache, **options)

    return call


def tokens_of(result):
    return [completion.tokens for completion in result.completions]


@pytest.fixture
def alone(run, cache_of):
    """The greedy tokens of each prompt, generated alone."""
    return [tokens_of(run([prompt], cache_of()))[0] for prompt in PROMPTS]


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("step_tokens", [1, 7, 1000])
def test_batched_and_chunked_equal_alone(run, cache_of, alone, block_size, step_tokens):
    cache = cache_of(num_blocks=400, block_size=block_size)
    result = run(PROMPTS, cache, step_tokens=step_tokens)
    assert tokens_of(result) == alone
    assert result.report.prompt_tokens == sum(map(len, PROMPTS))
    assert result.report.new_tokens == 48


def test_greedy_samples_are_equal(run, cache_of, alone):
    result = run([PROMPTS[3], PROMPTS[0]], cache_of(), n=3)
    assert tokens_of(result) == 3 * [alone[3]] + 3 * [alone[0]]
    assert [(each.prompt, each.sample) for each in result.completions] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]


def test_samples_share_the_prompt_and_copy_what_they_write(run, cache_of):
    report = run([PROMPTS[3]], cache_of(), n=4, sampling=Sampling(temperature=2.0, seed=5)).report
    assert report.copied == 3, "the partial last block of 33 tokens, by all writers but one"
    assert report.peak.sequences == 4
    assert report.peak.tokens == 4 * (33 + 11)
    assert report.peak.blocks == 8 + 4 * 3
    assert report.peak.blocks_alone == 4 * 11
    assert report.peak.shared == 8
    assert report.peak.reserved == 4 * (33 + 12)


def test_prompt_of_whole_blocks_copies_nothing(run, cache_of):
    result = run([PROMPTS[1]], cache_of(), n=3)
    assert result.report.copied == 0
    assert len({tuple(each) for each in tokens_of(result)}) == 1


def test_repeated_prompt_hits_the_prefix_cache(run, cache_of, alone):
    """Within a call, at the same time and later; and in another call."""
    cache = cache_of()
    result = run([PROMPTS[1], PROMPTS[1], PROMPTS[1]], cache)
    assert tokens_of(result) == 3 * [alone[1]]
    assert result.report.reused_tokens == 2 * 36
    result = run([PROMPTS[1]], cache)
    assert tokens_of(result) == [alone[1]]
    assert result.report.reused_tokens == 36


def test_common_beginning_is_computed_once(run, cache_of):
    system = list(range(100, 130))
    result = run([[*system, 1, 2], [*system, 3], [*system, 4, 5, 6]], cache_of())
    assert result.report.reused_tokens == 2 * 28


def test_prompts_with_nothing_in_common_start_together(run, cache_of):
    seen = []
    run([[1] * 9, [2] * 9, [3] * 9], cache_of(), on_prefill=lambda done, total: seen.append((done, total)))
    assert seen == [(27, 27)]


def test_prompts_wait_until_blocks_are_free(run, cache_of, alone):
    cache = cache_of(num_blocks=13)  # 40 + 11 tokens, and none besides
    result = run(PROMPTS, cache)
    assert tokens_of(result) == alone
    assert result.report.peak.blocks <= 13


def test_prompts_wait_until_sequences_are_free(run, cache_of, alone):
    result = run([PROMPTS[0], PROMPTS[2]], cache_of(max_sequences=2), n=2)
    assert tokens_of(result) == 2 * [alone[0]] + 2 * [alone[2]]
    assert result.report.peak.sequences <= 2


def test_blocks_of_the_caller_are_not_touched(run, cache_of, alone):
    cache = cache_of(num_blocks=20)
    mine = cache.admit([list(range(200, 225))]).ids
    held = cache.sequence(mine[0]).block_table.copy()
    with pytest.raises(OutOfBlocks, match="13 are free"):
        run([[0] * 60], cache)
    assert tokens_of(run([PROMPTS[1]], cache)) == [alone[1]]
    assert np.array_equal(cache.sequence(mine[0]).block_table, held)
    cache.release(mine)


@pytest.mark.parametrize("n", [1, 2])
def test_what_never_fits_is_refused_before_anything_runs(run, cache_of, n):
    cache = cache_of(num_blocks=13 * n - 1 - 10 * (n - 1))
    seen = []
    with pytest.raises(
        OutOfBlocks, match=rf"prompt 1 may need {13 + 3 * (n - 1)} blocks \({n} x up to 40 \+ 12 tokens\)"
    ):
        run(PROMPTS, cache, n=n, on_text=lambda *event: seen.append(event))
    assert seen == []
    assert cache.stats().query_tokens == 0


def test_more_samples_than_sequences_are_refused(run, cache_of):
    with pytest.raises(OutOfSequences, match="3 sequences go on from one prompt; the cache has room for 2"):
        run([[1]], cache_of(max_sequences=2), n=3)


@pytest.mark.parametrize("length", [0, 256, 300])
def test_prompt_that_does_not_fit_the_context_is_refused(run, cache_of, length):
    with pytest.raises(ValueError, match=f"prompt 1 has {length} tokens; the model takes 1 to 255"):
        run([[1], [1] * length], cache_of())


def test_context_ends_a_text(run, cache_of):
    (completion,) = run([[1] * 250], cache_of(), max_tokens=100).completions
    assert len(completion.tokens) == 6
    assert not completion.ended


def test_cache_for_shorter_sequences_is_refused(run, cache_of):
    with pytest.raises(ValueError, match="prompt 0 may grow to 31 tokens; the cache's max_length is 24"):
        run([[1] * 20], cache_of(max_length=24))


@pytest.mark.parametrize("option", ["n", "max_tokens", "step_tokens"])
def test_numbers_below_one_are_refused(run, cache_of, option):
    with pytest.raises(ValueError, match=f"{option} is 0; it must be at least 1"):
        run([[1]], cache_of(), **{option: 0})


def test_token_that_ends_a_text_is_not_part_of_it(run, cache_of, alone):
    end = alone[1][5]
    expected = alone[1][: alone[1].index(end)]
    (completion,) = run([PROMPTS[1]], cache_of(), ends=frozenset([end])).completions
    assert completion.tokens == expected
    assert completion.ended


def test_text_that_ends_at_once(run, cache_of, alone):
    result = run([PROMPTS[1]], cache_of(), ends=frozenset([alone[1][0]]), n=3)
    assert tokens_of(result) == [[], [], []]
    assert all(completion.ended and completion.text == "" for completion in result.completions)


def test_text_arrives_in_pieces(run, cache_of, tiny):
    pieces, ended = {}, []

    def on_text(index, piece, last):
        assert index not in ended
        pieces[index] = pieces.get(index, "") + piece
        if last:
            ended.append(index)

    result = run(PROMPTS, cache_of(), n=2, sampling=Sampling(temperature=1.0, seed=4), on_text=on_text)
    assert sorted(ended) == list(range(8))
    for index, completion in enumerate(result.completions):
        assert index == completion.prompt * 2 + completion.sample
        assert pieces[index] == completion.text == tiny[1].decode(completion.tokens)


def test_progress_reaches_the_end(run, cache_of):
    seen = []
    run([PROMPTS[1], PROMPTS[1]], cache_of(), step_tokens=16, on_prefill=lambda *event: seen.append(event))
    assert seen == [(16, 80), (32, 80), (40, 80), (76, 80), (80, 80)]


def test_seed_makes_samples_repeatable_whatever_their_mates(run, cache_of):
    sampling = Sampling(temperature=1.0, seed=11)
    first = tokens_of(run([PROMPTS[0], PROMPTS[1]], cache_of(), n=2, sampling=sampling))
    alone = tokens_of(run([PROMPTS[0]], cache_of(), n=2, sampling=sampling))
    assert first[:2] == alone
    assert len({tuple(each) for each in first}) == 4


def test_no_prompts(run, cache_of):
    result = run([], cache_of())
    assert result.completions == []
    assert result.report.peak.blocks == 0


@pytest.mark.parametrize("at", ["text", "prefill"])
def test_error_in_a_callback_releases_everything(run, cache_of, at):
    def fail(*event):
        raise RuntimeError("the caller's")

    with pytest.raises(RuntimeError, match="the caller's"):
        run(PROMPTS, cache_of(), n=2, **{f"on_{at}": fail})


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("at", ["forward", "commit"])
def test_interrupt_within_a_step_releases_everything(run, cache_of, tiny, monkeypatch, at, moment):
    cache = cache_of()
    owner = cache if at == "commit" else tiny[0]
    whole, calls = getattr(owner, at), []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3 and moment == "before":
            raise KeyboardInterrupt
        result = whole(*arguments, **options)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, at, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(PROMPTS, cache, n=2)
    monkeypatch.undo()
    assert run(PROMPTS, cache).report.new_tokens == 48, "no step was left open"


def test_error_in_the_model_abandons_the_step(run, cache_of):
    """A token outside of the vocabulary is found when its chunk is computed."""
    with pytest.raises(ValueError, match="the vocabulary ends at 279"):
        run([[1, 2], [3] * 20 + [999]], cache_of(), step_tokens=8)
