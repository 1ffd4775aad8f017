"""commit publishes, match finds, eviction forgets. DESIGN 3 (Commit, Index), 4.1, 4.2, 4.9, 4.10."""

import numpy as np
import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot
from holdings import agreeing
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedcache.core import BlockPool, SequenceTable


def length(table, prompt):
    return int(table.match([prompt])[0])


def test_match_returns_int32_lengths(make):
    got = make().match([[1, 2], [], [3] * 9])
    assert got.dtype == np.int32 and got.tolist() == [0, 0, 0]


def test_match_of_nothing(make):
    assert make().match([]).shape == (0,)


def test_w23_nothing_is_matchable_before_commit(make):
    table, prompt = make(), list(range(8))
    [a] = table.admit([prompt]).ids
    assert length(table, prompt) == 0
    step = table.extend([a], 8)
    assert length(table, prompt) == 0
    table.abandon(step)
    assert length(table, prompt) == 0
    table.commit(table.extend([a], 8), prompt)
    assert length(table, prompt) == 7 and length(table, [*prompt, 0]) == 8


def test_w06_only_full_blocks_are_published(make):
    table = make()
    sid = prefill(table, range(6))
    assert [length(table, range(n)) for n in (4, 5, 6, 7, 8, 9)] == [3, 4, 4, 4, 4, 4]
    feed(table, [sid], [[6, 7]])
    assert [length(table, range(n)) for n in (4, 5, 6, 7, 8, 9)] == [3, 4, 5, 6, 7, 8]
    assert length(table, [*range(6), 9, 9, 9]) == 6


def test_w06_tokens_committed_one_by_one_publish_the_same_chain(make):
    table = make()
    [sid] = table.admit([[]]).ids
    assert [feed(table, [sid], [[t]]) for t in range(9)] == [0, 0, 0, 1, 0, 0, 0, 1, 0]
    assert length(table, range(9)) == 8


def test_commit_returns_the_number_of_blocks_published(make):
    table = make()
    ids = table.admit([range(9), [50] * 3, [60] * 4]).ids
    assert feed(table, ids, [range(9), [50] * 3, [60] * 4]) == 3


def test_commit_advances_the_position(make):
    table = make()
    sid = prefill(table, range(6))
    feed(table, [sid], [[1, 2]])
    assert position_of(table, sid) == 8


def test_commit_without_tokens_advances_and_publishes_no_more(make):
    table = make()
    [sid] = table.admit([[1] * 12]).ids
    assert feed(table, [sid], [[1] * 4]) == 1
    assert feed(table, [sid], [[1] * 4], known=False) == 0
    assert position_of(table, sid) == 8
    assert feed(table, [sid], [[1] * 4]) == 0
    assert length(table, [1] * 13) == 4


def test_a_partial_block_committed_without_tokens_is_never_published(make):
    table = make()
    [sid] = table.admit([[1] * 4]).ids
    feed(table, [sid], [[1, 1]], known=False)
    assert feed(table, [sid], [[1, 1]]) == 0 and length(table, [1] * 5) == 0


def test_identity_is_the_whole_prefix_not_the_block(make):
    table = make()
    prefill(table, [1] * 4 + [2] * 4)
    prefill(table, [3] * 4)
    assert length(table, [3] * 4 + [2] * 4 + [0]) == 4
    assert length(table, [2] * 4 + [0]) == 0


def test_a_hole_ends_the_match(make):
    table = make()
    prefill(table, range(12))
    assert length(table, [*range(4), 99, 5, 6, 7, *range(8, 13)]) == 4


@pytest.mark.parametrize("position", range(8))
@pytest.mark.parametrize("value", [0, 7, 2**31 - 1])
def test_every_token_of_a_block_is_compared(make, position, value):
    table, prompt = make(block_size=8), [5] * 9
    prefill(table, prompt)
    prompt[position] = value
    assert length(table, prompt) == position


def test_tokens_may_have_any_value_of_31_bits(make):
    table, prompt = make(), [0, 2**31 - 1, 0, 2**31 - 2, 1]
    prefill(table, prompt)
    assert length(table, prompt) == 4


def test_match_is_what_admit_would_call_cached(make):
    table = make()
    prefill(table, range(13))
    prompts = [range(n) for n in range(16)]
    assert [int(table.admit([p]).cached[0]) for p in prompts[:3]] == table.match(prompts[:3]).tolist()
    probes = table.match(prompts).tolist()
    for prompt, probe in zip(prompts, probes, strict=True):
        admission = table.admit([prompt])
        assert admission.cached[0] == probe
        table.release(admission.ids)


def test_match_is_read_only(make):
    """A probe neither pins nor makes a block younger."""
    table = make(num_blocks=2)
    table.release([prefill(table, [1] * 4)])
    table.release([prefill(table, [2] * 4)])
    before = snapshot(table)
    assert length(table, [1] * 5) == 4
    assert snapshot(table) == before
    table.admit([[3]])
    assert (length(table, [1] * 5), length(table, [2] * 5)) == (0, 4)


def test_a_row_that_commits_a_known_block_adopts_it(make):
    table = make()
    a, b = table.admit([range(9), range(9)]).ids
    feed(table, [a], [range(9)])
    assert table.stats().used == 6
    assert feed(table, [b], [range(9)]) == 0
    assert blocks_of(table, b)[:2] == blocks_of(table, a)[:2]
    assert table.stats().used == 4 and table.stats().shared == 2


def test_equal_blocks_of_one_step_are_published_once(make):
    table = make()
    a, b = table.admit([range(8), range(8)]).ids
    assert feed(table, [a, b], [range(8), range(8)]) == 2
    assert blocks_of(table, a) == blocks_of(table, b) and table.stats().used == 2


def test_adoption_of_an_idle_block(make):
    table = make()
    a, b = table.admit([range(4), range(4)]).ids
    feed(table, [a], [range(4)])
    kept = blocks_of(table, a)
    table.release([a])
    feed(table, [b], [range(4)])
    assert blocks_of(table, b) == kept and table.stats().used == 1 and table.stats().cached == 0


def test_w21_published_content_is_never_written(make):
    """No slot of any later step lies in a published block, whoever holds it."""
    table = make()
    sid = prefill(table, range(8))
    published = set(blocks_of(table, sid))
    table.truncate([sid], [2])
    [[kid]] = table.fork([sid])
    for _ in range(5):
        step = table.extend([sid, kid], 1)
        assert not {s // 4 for s in step.slots.tolist()} & published
        table.commit(step, [70, 71])
    assert length(table, range(9)) == 8


@given(st.lists(st.lists(st.integers(0, 1), max_size=12), max_size=12), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_match_agrees_with_a_set_of_prefixes(prompts, block_size):
    table = SequenceTable(BlockPool(200), block_size)
    known = set()
    for prompt in prompts:
        best = 0
        while best + block_size < len(prompt) and tuple(prompt[: best + block_size]) in known:
            best += block_size
        nexts = [one[best:] for one in known if len(one) == best + block_size and list(one[:best]) == prompt[:best]]
        rest = prompt[best:-1][: block_size - 1]
        best += max((agreeing(rest, one) for one in nexts), default=0)
        assert length(table, prompt) == best
        prefill(table, prompt)
        known |= {tuple(prompt[:n]) for n in range(block_size, len(prompt) + 1, block_size)}
    table.check()


def test_many_distinct_chains_are_all_found_exactly():
    """Thousands of entries, so that tags collide in their low bits: no false hit, no lost one."""
    table = SequenceTable(BlockPool(6000), 2, max_sequences=2)
    rng = np.random.default_rng(0)
    prompts = np.unique(rng.integers(0, 2**31, (1500, 5), dtype=np.int64), axis=0)
    for prompt in prompts:
        table.release([prefill(table, prompt.tolist())])
    assert (table.match(list(prompts)) == 4).all()
    wrong = prompts.copy()
    wrong[:, 3] ^= 1
    assert (table.match(list(wrong)) == 3).all()
    table.check()


@pytest.mark.parametrize("tag_bits", [0, 1, 5])
def test_colliding_tags_never_serve_another_prompt(tag_bits):
    """Contract 2: a hit compares tokens and parent, so that a weak hash costs time and nothing else."""
    table = SequenceTable(BlockPool(100), 2, tag_bits=tag_bits)
    chains = [[a, b, c, a, b] for a in range(3) for b in range(3) for c in range(3)]
    for n, chain in enumerate(chains):
        assert all(length(table, other) < 4 for other in chains[n:])
        prefill(table, chain)
        assert all(length(table, other) == 4 for other in chains[: n + 1])
    table.check()


def test_what_finds_no_slot_within_the_probe_limit_is_not_published():
    """Contract 18: the index gets no slower; the rows go on and share less."""
    table = SequenceTable(BlockPool(800), 2, max_sequences=250, tag_bits=0)
    ids = [prefill(table, [n, 1, 1, 1]) for n in range(250)]
    published = table.stats().published
    assert 0 < published < 500
    assert sum(table.match([[n, 1, 1, 1, 1] for n in range(250)]).tolist()) == 2 * published
    feed(table, ids, [[n, n] for n in range(250)])
    table.check()
    table.release(ids)
    assert table.stats().free == 800
    for n in range(250, 600):  # and the crowded slots are usable again when their blocks are recycled
        table.release([prefill(table, [n, 1, 1, 1])])
    table.check()


def test_hit_and_query_tokens_are_counted(make):
    table = make()
    prefill(table, range(9))
    table.admit([range(9), [7]])
    assert table.stats().hit_tokens == 8 and table.stats().query_tokens == 19
