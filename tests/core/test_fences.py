"""Blocks that submitted work may still read. DESIGN 3 (Fences) and 4.14."""

import gc

import pytest
from drive import blocks_of, feed, prefill, snapshot

from pagedcache.core import BlockPool, SequenceTable
from pagedcache.errors import OutOfBlocks


def test_without_a_fence_drops_are_immediate(make):
    table = make()
    assert table.release([prefill(table, range(9))]) == 3 and table.stats().waiting == 0
    table.cover(0)
    assert table.release([prefill(table, [9] * 9)]) == 3, "0 is always retired"


@pytest.mark.parametrize(("verb", "more", "blocks"), [("release", (), 3), ("truncate", ([4],), 2), ("swap_out", (), 3)])
def test_what_a_verb_drops_waits_for_the_newest_fence(make, verb, more, blocks):
    table = make()
    sid = prefill(table, range(9))
    table.cover(3)
    table.cover(7)
    free = table.stats().free
    assert getattr(table, verb)([sid], *more) == 0, "nothing is usable now"
    assert (table.stats().free, table.stats().waiting) == (free, blocks) and table.pool.num_waiting == blocks
    assert table.retire(6) == 0
    assert table.retire(7) == blocks
    assert (table.stats().free, table.stats().waiting) == (free + blocks, 0)


def test_what_abandon_and_commit_drop_waits(make):
    table = make()
    a, b = prefill(table, [1] * 6), prefill(table, [2] * 6)
    table.fork([b])
    table.cover(1)
    step = table.extend([a, b], [7, 1])
    used = table.stats().used
    table.abandon(step)
    assert (table.stats().used, table.stats().waiting) == (used, 3), "two new blocks of a, the copy of b"
    table.retire(1)
    table.cover(2)
    step = table.extend([a, b], [7, 1])
    table.commit(step, [1] * 8, accepted=[[], [0]])
    assert table.stats().waiting == 2, "the blocks of the tokens that are rolled back"


def test_the_source_of_a_copy_and_an_adopted_block_wait(make):
    table = make()
    a, b = prefill(table, range(6)), prefill(table, range(6))
    feed(table, [a], [[6, 7]])
    table.cover(1)
    own = blocks_of(table, b)[1]
    feed(table, [b], [[6, 7]])
    assert table.pool.refcount(own) == 1 and table.stats().waiting == 1
    table.truncate([a, b], 6)
    step = table.extend([a, b], 1)
    [source] = set(step.copies[:, 0].tolist())
    table.commit(step, [8, 9])
    assert table.pool.refcount(source) == 1 and table.stats().waiting == 2
    assert table.retire(1) == 2 and table.pool.refcount(own) == table.pool.refcount(source) == 0


def test_reading_goes_on_in_a_step_that_is_open_when_its_row_is_released(make):
    table = make()
    sid = prefill(table, range(9))
    step = table.extend([sid], 1)
    table.release([sid])
    table.cover(1)
    table.commit(step, [9])
    assert table.stats().waiting == 3
    assert table.retire(1) == 3


def test_admit_and_extend_and_evict_do_not_get_waiting_blocks(make):
    table = make(num_blocks=4)
    other = prefill(table, [5])
    sid = prefill(table, range(9))
    waiting = set(blocks_of(table, sid))
    table.cover(1)
    table.release([sid])
    assert table.stats().free == 0 and table.stats().cached == 0
    assert table.evict(4) == 0
    assert table.admit([[7]]).status[0] == 1
    assert not table.can_extend([other], 4)
    with pytest.raises(OutOfBlocks, match="3 wait for a fence"):
        table.extend([other], 4)
    with pytest.raises(OutOfBlocks):
        table.pool.allocate(1)
    table.retire(1)
    assert table.can_extend([other], 4) and table.stats().cached == 2
    assert set(blocks_of(table, int(table.admit([[7] * 12]).ids[0]))) == waiting


def test_match_and_admit_find_waiting_blocks(make):
    """Their content is whole: only writing has to wait."""
    table = make()
    sid = prefill(table, range(9))
    blocks = blocks_of(table, sid)[:2]
    table.cover(1)
    table.release([sid])
    assert table.match([range(9)])[0] == 8
    again = table.admit([range(9)])
    assert again.cached[0] == 8 and blocks_of(table, int(again.ids[0]))[:2] == blocks
    assert table.retire(1) == 1, "the found ones are the new sequence's"
    assert table.release(again.ids) == 3 and table.stats().cached == 2


def test_what_a_sequence_holds_again_is_not_counted_as_waiting(make):
    table = make()
    sid = prefill(table, range(8))
    table.cover(1)
    table.release([sid])
    table.admit([range(9)])
    assert table.stats().waiting == 0


def test_a_found_block_that_is_dropped_again_waits_for_the_later_fence(make):
    table = make()
    sid = prefill(table, range(8))
    table.cover(1)
    table.release([sid])
    [again] = table.admit([range(9)]).ids
    table.cover(2)
    table.release([again])
    assert table.stats().waiting == 3 and table.retire(1) == 0
    assert table.retire(2) == 3


def test_a_copy_is_made_where_the_tail_may_still_be_read(make):
    """A block that waits for a fence is nobody's to write, even where one sequence has it alone."""
    table = make()
    sid = prefill(table, range(8))
    table.cover(1)
    table.release([sid])
    [again] = table.admit([range(9)]).ids
    table.truncate([again], [7])
    step = table.extend([again], 1)
    assert len(step.copies) == 1
    table.abandon(step)


def test_fences_retire_in_any_steps_and_never_fall(make):
    table = make(num_blocks=32)
    for fence in range(1, 7):
        table.cover(fence)
        table.cover(fence - 1)  # lower: the newest one stays
        table.release([prefill(table, [fence] * 5)])
    assert table.stats().waiting == 12
    assert [table.retire(f) for f in (2, 1, 2, 5, 4, 6, 6)] == [4, 0, 0, 6, 0, 2, 0]


def test_a_retired_fence_holds_nothing_back(make):
    table = make()
    table.retire(9)
    table.cover(8)
    assert table.release([prefill(table, [1] * 5)]) == 2


def test_the_largest_fence(make):
    table = make()
    table.cover(2**63 - 1)
    assert table.release([prefill(table, [1] * 5)]) == 0
    assert table.retire(2**63 - 2) == 0 and table.retire(2**63 - 1) == 2
    assert table.release([prefill(table, [2] * 5)]) == 2


@pytest.mark.parametrize("verb", ["cover", "retire"])
@pytest.mark.parametrize("bad", [-1, -(2**63), 2**63, 2**64, 1.0, "1", None, True, [1]])
def test_a_fence_is_an_int_of_63_bits(make, verb, bad):
    table = make()
    sid = prefill(table, range(9))
    before = snapshot(table, sid)
    with pytest.raises((ValueError, TypeError), match="fence"):
        getattr(table, verb)(bad)
    assert snapshot(table, sid) == before and table.release([sid]) == 3


def test_evicted_in_the_order_of_the_drops_after_the_fence(make):
    """Tail first, oldest first, as if there had been no fence: check() looks at the order."""
    table = make(num_blocks=6)
    a, b = prefill(table, [1] * 8), prefill(table, [2] * 8)
    table.cover(1)
    table.release([b])
    table.cover(2)
    table.release([a])
    table.retire(2)
    assert table.evict(2) == 2 and table.match([[1] * 9, [2] * 9]).tolist() == [8, 0]


def test_an_audit_while_blocks_wait(make):
    table = make()
    table.cover(1)
    table.release([prefill(table, range(9))])
    try:
        table.check()
    finally:
        table.retire(1)


def test_a_table_that_goes_leaves_no_block_waiting():
    pool = BlockPool(8)
    table = SequenceTable(pool, 4)
    table.cover(5)
    table.release([prefill(table, range(9))])
    prefill(table, [9] * 5)
    assert pool.num_waiting == 3
    del table
    gc.collect()
    assert (pool.num_free, pool.num_waiting, pool.num_cached) == (8, 0, 0)
    pool.check()
    assert pool.decref(pool.allocate(8)) == 8, "and nobody has to retire anything"


def test_a_callers_blocks_wait_too(make):
    table = make()
    ids = table.pool.allocate(5)
    table.cover(1)
    assert table.pool.decref(ids) == 0 and table.stats().waiting == 5
    assert table.retire(1) == 5


def test_unpin_waits_and_reset_forgets_what_waits(make):
    table = make()
    sid = prefill(table, range(8))
    table.pin([range(8)], "system")
    table.cover(1)
    table.release([sid])
    assert table.stats().waiting == 0, "the pin holds them"
    assert table.unpin("system") == 0 and table.stats().waiting == 2
    assert table.reset() == 2 and table.match([range(9)])[0] == 0
    assert table.stats().free == 14
    assert table.retire(1) == 2 and table.stats().cached == 0
