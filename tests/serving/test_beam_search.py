"""Beam search on the paged cache finds what one over full recomputation finds, and takes little memory for it."""

import numpy as np
import pytest
import tiny_llama
from dense_llama import reference_logits
from plain_beams import plain_beam_search

from pagedcache import KVCache
from pagedcache.errors import OutOfBlocks, OutOfSequences
from pagedcache.serving import beam_search, generate
from pagedcache.serving.models import load_model

PROMPTS = [[5, 6, 7], list(range(40)), [9], list(range(40, 73))]
NO_END = frozenset()
SOME_ENDS = frozenset(range(0, 280, 9))


@pytest.fixture
def run(tiny):
    def call(prompts, cache, **options):
        return beam_search(*tiny, prompts, cache, **{"max_tokens": 12, "ends": NO_END} | options)

    return call


def recomputed(texts):
    """Logits after the last token of each text, in float64, from nothing."""
    weights = tiny_llama.weights()
    return [reference_logits(weights, text)[-1].tolist() for text in texts]


def assert_equal(completions, expected):
    assert [(each.tokens, each.ended) for each in completions] == [(tokens, ended) for _, tokens, ended in expected]
    assert [each.score for each in completions] == pytest.approx([score for score, _, _ in expected], abs=1e-4)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(
    ("beams", "n", "ends", "length_penalty"),
    [(1, 1, NO_END, 1.0), (4, 4, NO_END, 1.0), (4, 2, SOME_ENDS, 1.0), (3, 3, SOME_ENDS, 0.0), (5, 5, SOME_ENDS, 2.0)],
)
def test_w19_equal_to_full_recomputation(run, cache_of, block_size, beams, n, ends, length_penalty):
    """Beams that overwrote each other's last block would go on from another's tokens."""
    options = {"beams": beams, "n": n, "max_tokens": 10, "ends": ends, "length_penalty": length_penalty}
    result = run([PROMPTS[3][:13]], cache_of(block_size=block_size), **options)
    assert_equal(result.completions, plain_beam_search(recomputed, PROMPTS[3][:13], **options))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_w38_reorder_means_the_same_for_every_storage_type(tiny, cache_of, dtype):
    """Recomputed on a fresh cache of the same type each time."""
    model, tokenizer = tiny
    spec = model.cache_spec(dtype=dtype, block_size=4)

    def logits_of(texts):
        with KVCache(spec, num_blocks=40) as cache:
            step = cache.extend(cache.admit(texts).ids, [len(text) for text in texts])
            return model.forward(np.concatenate(texts), step, cache).tolist()

    options = {"beams": 3, "n": 3, "max_tokens": 10, "ends": NO_END, "length_penalty": 1.0}
    with KVCache(spec, num_blocks=40) as cache:
        result = beam_search(model, tokenizer, [PROMPTS[0]], cache, **options)
        cache.check()
    assert_equal(result.completions, plain_beam_search(logits_of, PROMPTS[0], **options))


def test_four_beams_take_at_most_125_percent_of_one_sequence(tmp_path, record_property):
    """256 prompt tokens and 32 new ones, as tests/slow/test_smollm2_beams.py has it on a real model."""
    model, tokenizer = load_model(tiny_llama.write(tmp_path / "long.gguf", context_length=512))
    prompt = np.random.default_rng(1).integers(0, 256, 256).tolist()
    options = {"max_tokens": 32, "ends": NO_END}
    spec = model.cache_spec(block_size=8)
    with KVCache(spec, num_blocks=100) as cache, KVCache(spec, num_blocks=100) as other:
        found = beam_search(model, tokenizer, [prompt], cache, beams=4, n=4, **options)
        generate(model, tokenizer, [prompt], other, **options)
        percent = 100 * cache.stats().peak_used / other.stats().peak_used
        assert other.stats().peak_used == spec.blocks_per_sequence(256 + 31)
        assert found.report.peak.blocks == cache.stats().peak_used
    record_property("percent of one sequence", round(percent))
    assert percent <= 125
    expected = plain_beam_search(recomputed, prompt, beams=4, n=4, length_penalty=1.0, **options)
    assert_equal(found.completions, expected)


def test_one_beam_is_greedy(run, cache_of, tiny):
    expected = generate(*tiny, PROMPTS, cache_of(), max_tokens=12, ends=NO_END).completions
    result = run(PROMPTS, cache_of(), beams=1)
    assert [each.tokens for each in result.completions] == [each.tokens for each in expected]
    assert [each.text for each in result.completions] == [each.text for each in expected]
    assert result.report.copied == 0


@pytest.mark.parametrize("step_tokens", [1, 7, 1000])
def test_prompts_are_searched_as_if_alone(run, cache_of, step_tokens):
    alone = [run([prompt], cache_of(), n=2).completions for prompt in PROMPTS]
    result = run(PROMPTS, cache_of(), n=2, step_tokens=step_tokens)
    assert [each.tokens for each in result.completions] == [each.tokens for found in alone for each in found]
    assert [(each.prompt, each.sample) for each in result.completions] == [(i, k) for i in range(4) for k in range(2)]
    assert result.report.prompt_tokens == sum(map(len, PROMPTS))


def test_r01_beams_go_on_from_what_the_prefix_cache_has(run, cache_of):
    cache = cache_of()
    first = run([PROMPTS[1]], cache, n=4)
    longer = PROMPTS[1] + first.completions[0].tokens
    again = run([PROMPTS[1], longer], cache, n=4)
    assert again.report.reused_tokens == 36 + 48
    assert again.completions[:4] == first.completions
    fresh = run([longer], cache_of(), n=4)
    assert [each.tokens for each in again.completions[4:]] == [each.tokens for each in fresh.completions]


def test_s05_only_the_block_that_two_beams_write_is_copied(run, cache_of):
    """33 prompt tokens in blocks of 4: with the first new token all beams write into the ninth block."""
    assert run([PROMPTS[3]], cache_of(), max_tokens=1).report.copied == 0, "the fork copies nothing"
    assert run([PROMPTS[3]], cache_of(), max_tokens=2).report.copied == 3
    assert run([PROMPTS[1]], cache_of(), max_tokens=2).report.copied == 0, "the prompt ends with its block"


def test_m07_beams_need_the_prompt_once(run, cache_of):
    """40 prompt tokens and 4 stored ones of each of 4 beams, in blocks of 4."""
    cache = cache_of(num_blocks=14)
    report = run([PROMPTS[1]], cache, max_tokens=5).report
    assert report.peak.blocks <= 14
    assert report.peak.blocks_alone == 4 * 11
    with pytest.raises(OutOfBlocks, match=r"prompt 1 may need 14 blocks \(4 x up to 40 \+ 5 tokens\), 13 are free"):
        run([[1], PROMPTS[1]], cache_of(num_blocks=13), max_tokens=5)


def test_report(run, cache_of):
    report = run([PROMPTS[3]], cache_of(), beams=3).report
    assert report.new_tokens == 3 * 12
    assert report.decode_tokens == 3 * 11
    assert report.peak.sequences == 3
    assert report.peak.tokens == 3 * (33 + 11)
    assert report.peak.reserved == 3 * (33 + 12)


def test_progress(run, cache_of):
    seen = []
    run(
        [PROMPTS[1], PROMPTS[0]],
        cache_of(),
        step_tokens=25,
        max_tokens=3,
        on_prefill=lambda *event: seen.append(("prefill", *event)),
        on_step=lambda *event: seen.append(("step", *event)),
    )
    assert seen == [
        ("prefill", 25, 43),
        ("prefill", 40, 43),
        ("step", 1, 4),
        ("step", 2, 4),
        ("prefill", 43, 43),
        ("step", 3, 4),
        ("step", 4, 4),
    ]


def test_context_ends_a_text(run, cache_of):
    (completion,) = run([[1] * 250], cache_of(), max_tokens=100).completions
    assert len(completion.tokens) == 6
    assert not completion.ended


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams is 0; it must be at least 1"),
        ({"n": 0}, "n is 0; it must be at least 1"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        ({"step_tokens": 0}, "step_tokens is 0; it must be at least 1"),
        ({"beams": 2, "n": 3}, "n is 3; 2 beams find at most 2 texts"),
        ({"length_penalty": float("nan")}, "length_penalty is nan; it must be from 0 to 10"),
        ({"length_penalty": 11.0}, "length_penalty is 11.0; it must be from 0 to 10"),
        ({"length_penalty": -1.0}, "length_penalty is -1.0; it must be from 0 to 10"),
        (
            {"beams": 250, "ends": SOME_ENDS},
            "beams is 250; the first token .* can only be one of 248",
        ),
    ],
)
def test_options_out_of_range_are_refused(run, cache_of, options, message):
    cache = cache_of()
    with pytest.raises(ValueError, match=message):
        run([[1]], cache, **options)
    assert cache.stats().query_tokens == 0


def test_more_beams_than_sequences_are_refused(run, cache_of):
    with pytest.raises(OutOfSequences, match="4 sequences go on from one prompt; the cache has room for 3"):
        run([[1]], cache_of(max_sequences=3))


@pytest.mark.parametrize("at", ["prefill", "step"])
def test_error_in_a_callback_releases_everything(run, cache_of, at):
    def fail(*event):
        raise RuntimeError("the caller's")

    with pytest.raises(RuntimeError, match="the caller's"):
        run(PROMPTS, cache_of(), **{f"on_{at}": fail})


def test_interrupt_within_a_step_releases_everything(run, cache_of, tiny, monkeypatch):
    whole, calls = tiny[0].forward, []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    cache = cache_of()
    monkeypatch.setattr(tiny[0], "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(PROMPTS, cache)
    monkeypatch.undo()
    assert len(run(PROMPTS, cache).completions) == 4, "no step was left open"
