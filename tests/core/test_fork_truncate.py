"""fork at any position and truncate. DESIGN 3 (verbs, Lengths)."""

import numpy as np
import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot

from pagedcache.errors import OutOfSequences


def test_fork_returns_one_row_of_kids_per_parent(make):
    table = make()
    a, b = prefill(table, [1]), prefill(table, [2] * 5)
    kids = table.fork([a, b], 3)
    assert kids.dtype == np.int64 and kids.shape == (2, 3)
    assert len({a, b, *kids.ravel().tolist()}) == 8
    assert [position_of(table, k) for k in kids.ravel()] == [1, 1, 1, 5, 5, 5]


def test_fork_of_nothing(make):
    table = make()
    a = prefill(table, [1])
    assert table.fork([], 2).shape == (0, 2) and table.fork([a], 0).shape == (1, 0)
    assert table.fork([], 1000).shape == (0, 1000) and table.fork([], 0).shape == (0, 0)
    assert table.stats().sequences == 1


def test_fork_takes_no_block_and_copies_nothing(make):
    table = make(num_blocks=2)
    sid = prefill(table, range(6))
    kids = table.fork([sid], 5)[0]
    assert table.stats().used == 2 and table.stats().copies == 0 and table.stats().shared == 2
    assert all(blocks_of(table, k) == blocks_of(table, sid) for k in kids)


@pytest.mark.parametrize("at", range(10))
def test_fork_at_any_position(make, at):
    table = make()
    sid = prefill(table, range(9))
    [[kid]] = table.fork([sid], at=at)
    assert position_of(table, kid) == at
    assert blocks_of(table, kid) == blocks_of(table, sid)[: -(-at // 4)]
    feed(table, [kid], [[70]])
    assert position_of(table, sid) == 9 and table.match([range(9)])[0] == 8


def test_fork_positions_per_parent(make):
    table = make()
    ids = [prefill(table, range(9)), prefill(table, [7] * 3)]
    kids = table.fork(ids, 2, at=[5, 2])
    assert [position_of(table, k) for k in kids.ravel()] == [5, 5, 2, 2]


def test_fork_does_not_share_what_is_only_allotted(make):
    table = make()
    [sid] = table.admit([range(12)]).ids
    feed(table, [sid], [range(5)])
    [[kid]] = table.fork([sid])
    assert blocks_of(table, kid) == blocks_of(table, sid)[:2] and len(blocks_of(table, sid)) == 3
    feed(table, [sid, kid], [[5], [6]])
    assert table.stats().copies == 1


def test_a_kid_of_a_padded_row_keeps_the_pad(make):
    table = make()
    sid = prefill(table, range(5), pads=[3])
    [[kid]] = table.fork([sid], at=6)
    step = table.extend([kid], 1)
    assert (step.kv_pads.tolist(), step.kv_lens.tolist(), step.positions.tolist()) == ([3], [7], [3])
    table.abandon(step)


def test_a_kid_of_a_row_that_publishes_no_more_does_not_either(make):
    """What the parent wrote without saying its tokens stands in the kid's blocks too."""
    table = make()
    [sid] = table.admit([[1] * 12]).ids
    feed(table, [sid], [[1] * 6], known=False)
    [[kid]] = table.fork([sid])
    assert feed(table, [kid], [[1, 1]]) == 0 and table.match([[1] * 9])[0] == 0


def test_a_kid_publishes_like_any_row(make):
    table = make()
    sid = prefill(table, range(6))
    [[kid]] = table.fork([sid])
    assert feed(table, [kid], [[70, 71]]) == 1
    assert table.match([[*range(6), 70, 71, 0]])[0] == 8
    assert feed(table, [sid], [[6, 7]]) == 1 and table.match([range(9)])[0] == 8


def test_a_kid_outlives_its_parent(make):
    table = make()
    sid = prefill(table, range(6))
    [[kid]] = table.fork([sid])
    kept = blocks_of(table, sid)
    assert table.release([sid]) == 0
    assert blocks_of(table, kid) == kept


@pytest.mark.parametrize("at", [-1, 7, 2**40, [6, 6], [7], []])
def test_fork_beyond_the_committed_position(make, at):
    table = make()
    sid = prefill(table, range(6))
    before = snapshot(table, sid)
    with pytest.raises((ValueError, OverflowError)):
        table.fork([sid], at=at)
    assert snapshot(table, sid) == before


def test_fork_before_the_pad_is_refused(make):
    table = make()
    sid = prefill(table, range(5), pads=[3])
    with pytest.raises(ValueError):
        table.fork([sid], at=2)


def test_too_few_rows_is_an_error_and_changes_nothing(make):
    table = make(max_sequences=4)
    a, b = prefill(table, range(6)), prefill(table, [7])
    before = snapshot(table, a, b)
    with pytest.raises(OutOfSequences) as caught:
        table.fork([a, b], 2)
    assert isinstance(caught.value, MemoryError) and snapshot(table, a, b) == before
    table.fork([a, b], 1)


@pytest.mark.parametrize("n", [-1, 256, 2**31 - 1, 2**31, 2**62])
def test_impossible_numbers_of_kids(make, n):
    table = make()
    sid = prefill(table, [1])
    with pytest.raises((ValueError, OutOfSequences, OverflowError)):
        table.fork([sid], n)
    assert table.stats().sequences == 1


@pytest.mark.parametrize("position", range(10))
def test_truncate_drops_blocks_beyond_the_position(make, position):
    table = make()
    sid = prefill(table, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    kept = blocks_of(table, sid)[: -(-position // 4)]
    free = table.stats().free
    assert table.truncate([sid], [position]) == 3 - len(kept) == table.stats().free - free
    assert blocks_of(table, sid) == kept and position_of(table, sid) == position


def test_w27_truncate_to_zero_then_append(make):
    table = make()
    sid = prefill(table, range(9))
    table.truncate([sid], [0])
    feed(table, [sid], [[5, 6]])
    assert position_of(table, sid) == 2 and len(blocks_of(table, sid)) == 1


@pytest.mark.parametrize("bad", [-1, 10, 2**40, -(2**40)])
def test_w27_truncate_out_of_range_names_the_position(make, bad):
    table = make()
    a, b = prefill(table, [5] * 6), prefill(table, range(9))
    before = snapshot(table, a, b)
    with pytest.raises(ValueError, match=str(bad)):
        table.truncate([a, b], [2, bad])
    assert snapshot(table, a, b) == before


def test_truncate_before_the_pad_is_refused(make):
    table = make()
    sid = prefill(table, range(5), pads=[3])
    with pytest.raises(ValueError):
        table.truncate([sid], [2])
    table.truncate([sid], [3])
    assert position_of(table, sid) == 3


def test_truncate_drops_allotted_blocks_even_at_its_own_position(make):
    table = make()
    [sid] = table.admit([range(16)]).ids
    feed(table, [sid], [range(5)])
    assert table.truncate([sid], [5]) == 2
    assert len(blocks_of(table, sid)) == 2


def test_truncate_frees_nothing_that_another_row_holds(make):
    table = make()
    sid = prefill(table, range(8))
    table.fork([sid])
    assert table.truncate([sid], [0]) == 0 and table.stats().used == 2


def test_truncate_of_the_last_holder_counts_cached_blocks_as_usable(make):
    table = make()
    sid = prefill(table, range(8))
    assert table.truncate([sid], [0]) == 2
    assert table.stats().cached == 2 and table.stats().free == 16


def test_truncate_several_rows(make):
    table = make()
    ids = [prefill(table, [t] * 9) for t in range(3)]
    assert table.truncate(ids, [9, 4, 0]) == 0 + 2 + 3
    assert [position_of(table, s) for s in ids] == [9, 4, 0]


def test_truncate_one_position_for_each_row(make):
    table = make()
    ids = [prefill(table, [t] * 9) for t in range(2)]
    for bad in ([4], [4, 4, 4]):
        with pytest.raises(ValueError):
            table.truncate(ids, bad)


def test_s04_truncate_moves_nothing(make):
    table = make(num_blocks=64)
    sid = prefill(table, [9] * 7)
    table.truncate([sid], [6])
    step = table.extend([sid], 1)
    assert len(step.copies) == 0  # nobody else holds the tail, and it was never full
    table.commit(step, [1])


def test_rewriting_after_truncate_publishes_the_new_content(make):
    table = make()
    sid = prefill(table, range(8))
    table.truncate([sid], [6])
    assert feed(table, [sid], [[70, 71]]) == 1
    assert table.match([[*range(6), 70, 71, 0], range(9)]).tolist() == [8, 8]


def test_a_kid_forked_before_published_blocks_publishes_its_own(make):
    """A fork or a truncate walks back in the index: what follows hangs on the prefix that was kept."""
    table = make()
    sid = prefill(table, range(12))
    [[kid]] = table.fork([sid], at=4)
    assert feed(table, [kid], [[70] * 4]) == 1
    table.truncate([sid], [4])
    assert feed(table, [sid], [[80] * 4]) == 1
    chains = [[*range(4), *[t] * 4, 0] for t in (70, 80)]
    assert table.match([*chains, range(13)]).tolist() == [8, 8, 12]


def test_rewriting_the_same_content_adopts_the_published_block(make):
    table = make()
    sid = prefill(table, range(8))
    kept = blocks_of(table, sid)
    table.truncate([sid], [6])
    assert feed(table, [sid], [[6, 7]]) == 0
    assert blocks_of(table, sid) == kept and table.stats().used == 2
