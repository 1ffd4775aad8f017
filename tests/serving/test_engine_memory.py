"""The engine short of memory: whoever gives way, texts are the same and the cache is left clean."""

import pytest
from engine_setting import DRAWN, PROMPTS, tokens_of

from pagedcache.errors import OutOfBlocks, OutOfSequences
from pagedcache.serving import Finish


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
    assert [request.found_tokens for request in requests] == [39 * share] * 3


def test_a_partial_hit_takes_no_block_that_was_promised(engine_of, cache_of):
    """Two requests are promised two blocks each of four; the second finds the head of an idle one."""
    cache = cache_of(num_blocks=4)
    engine = engine_of(cache, preemption="never")
    engine.submit(list(range(8)), max_tokens=1)
    engine.run()
    engine.submit([9] * 4, max_tokens=5)
    engine.step()
    second = engine.submit(list(range(6)), max_tokens=1)
    assert cache.match([list(range(6))])[0] == 5
    engine.run()
    assert second.found_tokens == 4


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


def test_beams_get_what_is_promised_though_samples_were_swapped_out(engine_of, cache_of):
    with engine_of(cache_of(70, block_size=1), preemption="swap") as engine:
        for first, options in ((0, {"n": 2}), (100, {"n": 2}), (200, {"beams": 2, "priority": 1})):
            engine.submit(list(range(first, first + 20))[: 12 if first == 200 else 20], max_tokens=9, **options)
        engine.run()
