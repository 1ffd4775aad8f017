"""swap_out and swap_in: the bookkeeping. The bytes are test_cache_swap.py's. DESIGN 3 (Swap)."""

import numpy as np
import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot

from pagedcache.core import BlockPool, PriorityTTL, SequenceTable
from pagedcache.errors import InvalidSequence, OutOfBlocks, StepOpen, SwappedOut


def test_own_blocks_go_and_come_back(make):
    table = make()
    sid = prefill(table, range(9))
    assert table.swap_out([sid]) == 3
    stats = table.stats()
    assert (stats.used, stats.swapped, stats.sequences, stats.tokens) == (0, 3, 1, 9)
    new = table.swap_in([sid])
    assert new.dtype == np.int32 and new.tolist() == blocks_of(table, sid)
    assert (table.stats().used, table.stats().swapped) == (3, 0) and position_of(table, sid) == 9


def test_the_list_names_what_would_be_lost_and_changes_nothing(make):
    table = make()
    a, b = prefill(table, range(9)), prefill(table, [7] * 3)
    [[kid]] = table.fork([a], at=6)
    before = snapshot(table, a, b, kid)
    blocks, indptr = table.swap_list([a, b, kid])
    assert blocks.dtype == np.int32 and indptr.dtype == np.int64
    assert blocks.tolist() == [blocks_of(table, a)[2], blocks_of(table, b)[0]] and indptr.tolist() == [0, 1, 2, 2]
    assert snapshot(table, a, b, kid) == before
    empty, bounds = table.swap_list([])
    assert len(empty) == 0 and bounds.tolist() == [0] and table.swap_out([]) == 0 and len(table.swap_in([])) == 0


def test_swap_in_answers_in_the_lists_order(make):
    table = make()
    ids = [prefill(table, [k] * n) for k, n in enumerate((9, 3, 6))]
    _, indptr = table.swap_list(ids)
    table.swap_out(ids)
    new = table.swap_in(ids)
    for k, sid in enumerate(ids):
        assert new[indptr[k] : indptr[k + 1]].tolist() == blocks_of(table, sid)


def test_allotted_blocks_go_without_bytes_and_come_back(make):
    table = make()
    [sid] = table.admit([range(5)], reserve=8).ids
    feed(table, [sid], [range(5)])
    assert len(table.swap_list([sid])[0]) == 2
    assert table.swap_out([sid]) == 4
    assert len(table.swap_in([sid])) == 2 and len(blocks_of(table, sid)) == 4


def test_shared_blocks_stay(make):
    table = make()
    sid = prefill(table, range(11))
    [[kid]] = table.fork([sid], at=8)
    kept = blocks_of(table, kid)
    assert table.swap_out([sid]) == 1
    assert [table.pool.refcount(b) for b in kept] == [2, 2]
    assert feed(table, [kid], [[50] * 4]) == 1, "the other goes on"
    assert len(table.swap_in([sid])) == 1 and blocks_of(table, sid)[:2] == kept


def test_both_of_a_pair_swapped_leave_what_they_share(make):
    table = make()
    sid = prefill(table, range(11))
    [[kid]] = table.fork([sid], at=8)
    table.swap_out([sid, kid])
    assert table.stats().used == 2
    table.release([kid])
    assert table.stats().used == 2, "the swapped one still holds them"
    table.swap_in([sid])
    assert table.release([sid]) == 3


def test_pinned_blocks_stay(make):
    table = make()
    sid = prefill(table, range(9))
    table.pin([range(8)], "system")
    assert table.swap_out([sid]) == 1 and table.stats().swapped == 1


def test_published_blocks_that_go_are_found_until_memory_is_wanted(make):
    table = make()
    sid = prefill(table, range(9))
    table.swap_out([sid])
    assert table.match([range(9)])[0] == 8 and table.stats().cached == 2
    table.evict(2)
    assert table.match([range(9)])[0] == 0
    table.swap_in([sid])
    assert table.match([range(9)])[0] == 0, "nothing is matchable before a commit"


@pytest.mark.parametrize("evicted", [0, 1, 2])
def test_a_row_that_came_back_publishes_its_own_tokens(make, evicted):
    """Token ids went out and came back with the blocks: adopted where the content is still there."""
    table = make()
    sid = prefill(table, range(9))
    table.swap_out([sid])
    table.evict(evicted)
    if evicted:
        table.release([prefill(table, [99] * 64)])  # whatever the blocks held is overwritten
        table.evict(16)
        evicted = 2
    table.swap_in([sid])
    assert feed(table, [sid], [[9, 10, 11]]) == evicted + 1 and table.stats().adopted == 2 - evicted
    assert table.match([[*range(12), 0]])[0] == 12


def test_only_swap_in_and_release_are_legal(make):
    table = make()
    a, b = prefill(table, range(9)), prefill(table, [1] * 5)
    table.swap_out([a])
    before = snapshot(table, b)
    calls = [
        lambda: table.extend([b, a], 1),
        lambda: table.can_extend([b, a], 1),
        lambda: table.fork([b, a]),
        lambda: table.reorder([b, a], [1, 0]),
        lambda: table.truncate([b, a], [1, 1]),
        lambda: table.swap_out([b, a]),
        lambda: table.swap_list([b, a]),
        lambda: table.position(a),
        lambda: table.length(a),
        lambda: table.block_table(a),
    ]
    for call in calls:
        with pytest.raises(SwappedOut, match=str(a)):
            call()
    assert snapshot(table, b) == before and table.stats().tokens == 14
    assert table.release([a, b]) == 2
    assert table.stats().swapped == 0 and table.stats().sequences == 0


def test_release_while_swapped_gives_back_what_stayed(make):
    table = make()
    sid = prefill(table, range(11))
    [[kid]] = table.fork([sid], at=8)
    table.swap_out([sid])
    table.release([kid])
    assert table.release([sid]) == 2 and table.stats().cached == 2
    with pytest.raises(InvalidSequence):
        table.swap_in([sid])


@pytest.mark.parametrize("which", ["live", "released", "twice", "open"])
def test_swap_in_wants_swapped_handles(make, which):
    table = make()
    a, b, gone = prefill(table, range(9)), prefill(table, [1] * 5), prefill(table, [2])
    table.release([gone])
    table.swap_out([a])
    ids, error = {
        "live": ([a, b], ValueError),
        "released": ([a, gone], InvalidSequence),
        "twice": ([a, a], ValueError),
        "open": ([a, b], StepOpen),
    }[which]
    step = table.extend([b], 1) if which == "open" else None
    used = table.stats().used
    with pytest.raises(error, match=str(ids[1])):
        table.swap_in(ids)
    assert table.stats().used == used and table.stats().swapped == 3
    if step is not None:
        table.abandon(step)
    table.swap_in([a])


def test_swap_out_of_an_open_step_is_refused(make):
    table = make()
    a, b = prefill(table, range(9)), prefill(table, [1] * 5)
    step = table.extend([b], 1)
    before = snapshot(table, a, b)
    with pytest.raises(StepOpen, match=str(b)):
        table.swap_out([a, b])
    assert snapshot(table, a, b) == before
    assert table.swap_out([a]) == 3
    table.commit(step, [1])
    table.swap_in([a])


def test_swap_in_is_all_or_nothing(make):
    table = make(num_blocks=6)
    a, b = prefill(table, range(9)), prefill(table, [1] * 9)
    table.swap_out([a, b])
    other = prefill(table, [7] * 13)
    before = snapshot(table, other)
    with pytest.raises(OutOfBlocks, match="needs 3 blocks, 2 of 6"):
        table.swap_in([a])
    assert snapshot(table, other) == before and table.stats().swapped == 6
    table.release([other])
    taken = table.pool.allocate(1)
    with pytest.raises(OutOfBlocks, match="needs 6 blocks, 5 of 6"):
        table.swap_in([a, b])
    assert table.stats().swapped == 6
    table.pool.decref(taken)
    assert len(table.swap_in([a, b])) == 6


def test_a_diff_tells_a_device_where_the_row_is_since(make):
    table = make()
    sid = prefill(table, range(9))
    table.swap_out([sid])
    prefill(table, [5] * 9)
    table.swap_in([sid])
    step = table.extend([sid], 1)
    told = {logical: block for _, logical, block in step.diff.tolist()}
    assert [told[j] for j in range(3)] == blocks_of(table, sid) == step.block_tables[0, :3].tolist()
    table.abandon(step)


def test_a_swapped_sequence_has_a_row(make):
    table = make(max_sequences=1)
    sid = prefill(table, range(9))
    table.swap_out([sid])
    assert table.admit([[1]]).status[0] == 1
    table.swap_in([sid])


@pytest.mark.parametrize("forget", [lambda t: t.reset(), lambda t: t.invalidate(namespace=None)])
def test_what_is_swapped_out_when_the_cache_forgets_publishes_no_more(make, forget):
    table = make()
    sid = prefill(table, range(9))
    table.swap_out([sid])
    forget(table)
    table.swap_in([sid])
    assert feed(table, [sid], [range(9)]) == 0 and table.stats().published == 0


def test_pads_and_keys_stay(make):
    from pagedcache import salt

    table = make()
    padded, keyed = prefill(table, [1] * 5, pads=[2]), prefill(table, [1] * 6, keys=[[salt("s")]])
    table.swap_out([padded, keyed])
    table.swap_in([padded, keyed])
    assert table.length(padded) == 5 and position_of(table, padded) == 7
    assert feed(table, [padded, keyed], [[1], [1, 1]]) == 1
    assert table.match([[1] * 9], keys=[[salt("s")]])[0] == 8


def test_a_table_that_goes_with_swapped_sequences_gives_all_back():
    pool = BlockPool(16)
    table = SequenceTable(pool, 4)
    sid = prefill(table, range(11))
    table.fork([sid], at=8)
    table.swap_out([sid])
    del table
    assert pool.num_free == 16
    pool.check()


def test_swapped_out_content_keeps_its_priority():
    table = SequenceTable(BlockPool(16, PriorityTTL([None, None])), 4)
    high, low = prefill(table, [1] * 9, priority=1), prefill(table, [2] * 9)
    table.swap_out([high])
    table.release([low])
    table.evict(2)
    assert table.match([[1] * 9, [2] * 9]).tolist() == [8, 0]
    table.swap_in([high])
    table.check()


def test_blocks_are_given_up_only_if_they_are_those_that_were_saved(make):
    """Between swap_list and swap_out others may have let go of a block, and then nobody has its bytes."""
    table = make()
    sid = prefill(table, range(9))
    [[kid]] = table.fork([sid], at=4)
    blocks, _ = table.swap_list([sid])
    table.release([kid])
    before = snapshot(table, sid)
    assert table.swap_out([sid], blocks) == -1 == table.swap_out([sid], []) and snapshot(table, sid) == before
    assert table.swap_out([sid], table.swap_list([sid])[0]) == 3
    table.swap_in([sid])


@pytest.mark.parametrize("end", ["swap_in", "cancel_swap_in", "release"])
def test_blocks_are_held_while_bytes_come_in_and_the_handle_is_still_away(make, end):
    table = make()
    [sid] = table.admit([range(9)], reserve=4).ids
    feed(table, [sid], [range(9)])
    [[kid]] = table.fork([sid], at=4)
    table.swap_out([sid])
    taken = table.begin_swap_in([sid])
    assert len(taken) == 2 and table.stats().used == 4 and table.stats().swapped == 3
    table.check()
    assert table.begin_swap_in([sid]).tolist() == taken.tolist(), "once is enough"
    with pytest.raises(SwappedOut):
        table.extend([sid], 1)
    table.release([kid])
    result = getattr(table, end)([sid])
    table.check()
    if end == "swap_in":
        assert result.tolist() == taken.tolist() == blocks_of(table, sid)[1:3]
        assert feed(table, [sid], [[9, 10, 11]]) == 1, "it knows its tokens"
    elif end == "cancel_swap_in":
        assert table.stats().used == 1 and table.stats().swapped == 3
        assert len(table.swap_in([sid])) == 2
    else:
        assert result == 4 and table.stats().used == 0
