"""Several open steps: the order of closing, what each sees of the rows, and what goes back. DESIGN 3 (Open steps)."""

import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot

from pagedcache.core import BlockPool, SequenceTable
from pagedcache.errors import InvalidSequence, StepBusy, StepClosed, StepOpen

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared


@pytest.fixture
def two(make):
    """A table for two open steps, and a row of six tokens."""
    table = make(steps_in_flight=2)
    return table, prefill(table, [1] * 6)


@pytest.mark.parametrize("bound", [1, 2, 3, 8])
def test_so_many_steps_and_no_more(make, bound):
    table = make(steps_in_flight=bound)
    a = prefill(table, [1])
    steps = [table.extend([a], 1) for _ in range(bound)]
    assert table.steps_in_flight == bound and table.open_steps == tuple(steps)
    before = snapshot(table, a)
    for verb in (table.extend, table.can_extend):
        with pytest.raises(StepBusy, match=str(bound)):
            verb([a], 1)
    assert snapshot(table, a) == before
    table.commit(steps[0], [2])
    steps.append(table.extend([a], 1))
    assert table.open_steps == tuple(steps[1:])
    for step in reversed(steps[1:]):
        table.abandon(step)
    assert position_of(table, a) == 2 and table.open_steps == ()


@pytest.mark.parametrize("bad", [0, -1, 9, 2**31, 2**64, 1.5, "2", None, True])
def test_bounds_of_steps_in_flight(bad):
    with pytest.raises((ValueError, TypeError), match="steps_in_flight"):
        SequenceTable(BlockPool(4), 4, steps_in_flight=bad)


def test_commit_closes_the_oldest_and_abandon_the_newest(two):
    table, a = two
    old, new = table.extend([a], 1), table.extend([a], 1)
    before = snapshot(table, a)
    with pytest.raises(StepClosed, match="oldest"):
        table.commit(new, [1])
    with pytest.raises(StepClosed, match="oldest"):
        table.check_commit(new, [1])
    with pytest.raises(StepClosed, match="newest"):
        table.abandon(old)
    assert snapshot(table, a) == before and not old.closed and not new.closed
    table.commit(old, [1])
    assert old.closed and not new.closed
    table.abandon(new)
    assert position_of(table, a) == 7


def test_a_row_of_two_steps_goes_on_where_the_older_leaves_it(two):
    table, a = two
    old, new = table.extend([a], 3), table.extend([a], 2)
    assert old.kv_lens.tolist() == [9] and new.kv_lens.tolist() == [11]
    assert old.positions.tolist() == [6, 7, 8] and new.positions.tolist() == [9, 10]
    blocks = blocks_of(table, a)
    assert new.slots.tolist() == [blocks[2] * 4 + 1, blocks[2] * 4 + 2]
    assert position_of(table, a) == 6, "nothing is committed"
    table.commit(old, [1] * 3)
    assert position_of(table, a) == 9
    table.commit(new, [1] * 2)
    assert position_of(table, a) == 11 and table.match([[1] * 9])[0] == 8


def test_abandon_of_the_newest_restores_what_the_older_left(two):
    table, a = two
    b = int(table.fork([a], at=5)[0, 0])
    old = table.extend([a], 1)
    before, kept = snapshot(table, a, b), blocks_of(table, b)
    for _ in range(3):
        new = table.extend([b, a], [3, 9])
        assert len(new.copies) == 1, "a may get the tail back, and has more in it than b"
        table.abandon(new)
        after = snapshot(table, a, b)
        assert after[1:] == before[1:] and blocks_of(table, b) == kept
        assert after[0][:4] == before[0][:4]
    table.commit(old, [5])
    assert position_of(table, a) == 7 and position_of(table, b) == 5


def test_all_abandoned_newest_first_is_as_if_none_had_been(make):
    table = make(num_blocks=40, steps_in_flight=4)
    ids = [prefill(table, range(6)), prefill(table, [7] * 3)]
    ids += table.fork(ids, 1, at=[6, 2])[:, 0].tolist()
    before = snapshot(table, *ids)
    steps = [table.extend(ids[k % 3 :], k + 1) for k in range(4)]
    for step in reversed(steps):
        table.abandon(step)
        table.check()
    after = snapshot(table, *ids)
    assert after == before
    assert feed(table, ids[:1], [[6, 7]]) == 1


def test_the_source_of_a_copy_stays_until_its_own_step_closes(two):
    table, a = two
    b = int(table.fork([a])[0, 0])
    old, _new = table.extend([a], 1), table.extend([a], 1)
    source = int(old.copies[0, 0])
    table.release([b])
    assert table.pool.refcount(source) == 1, "nobody but the older step holds it"
    table.commit(old, [5])
    assert table.pool.refcount(source) == 0
    table.abandon(table.open_steps[0])


def test_a_row_released_in_two_steps_goes_with_the_last(two):
    table, a = two
    held = set(blocks_of(table, a))
    old, new = table.extend([a], 4), table.extend([a], 4)
    held |= set(new.block_tables[0, :4].tolist())
    assert table.release([a]) == 0
    with pytest.raises(InvalidSequence):
        table.release([a])
    table.commit(old, [1] * 4)
    assert table.stats().used == len(held), "the newer step still names the row's blocks"
    assert not set(blocks_of(table, int(table.admit([[9] * 8]).ids[0]))) & held
    table.commit(new, [1] * 4)
    assert table.stats().used == 2 and table.match([[1] * 15])[0] == 4, "a released row publishes nothing more"


def test_a_released_row_does_not_keep_a_newer_step_from_being_abandoned(two):
    table, a = two
    old, new = table.extend([a], 4), table.extend([a], 4)
    table.release([a])
    table.abandon(new)
    assert table.stats().used == 3
    table.abandon(old)
    assert table.stats().used == 0 and table.stats().cached == 1


def test_a_block_given_up_at_commit_waits_for_newer_steps(two):
    """Adoption: the newer step's tables name the block that the row gave up."""
    table, a = two
    b = prefill(table, [1] * 6)
    feed(table, [b], [[1, 1]])
    theirs, own = blocks_of(table, b)[1], blocks_of(table, a)[1]
    old, new = table.extend([a], 2), table.extend([a], 1)
    assert table.commit(old, [1, 1]) == 0 and table.stats().adopted == 1
    assert blocks_of(table, a)[1] == theirs and new.block_tables[0, 1] == own
    assert table.pool.refcount(own) == 1
    later = table.extend([a], 1)
    assert later.block_tables[0, 1] == theirs
    table.commit(new, [1])
    assert table.pool.refcount(own) == 0, "the step opened after the adoption never saw it"
    table.abandon(later)


def test_a_block_given_up_comes_back_when_the_newer_step_is_abandoned(two):
    table, a = two
    b = prefill(table, [1] * 6)
    feed(table, [b], [[1, 1]])
    own = blocks_of(table, a)[1]
    old, new = table.extend([a], 2), table.extend([a], 1)
    table.commit(old, [1, 1])
    table.abandon(new)
    assert table.pool.refcount(own) == 0 and position_of(table, a) == 8
    assert feed(table, [a], [[2]]) == 0


def test_many_rows_give_up_blocks_at_once(make):
    table = make(num_blocks=200, steps_in_flight=2)
    first = prefill(table, [1] * 12)
    ids = table.admit([[2]] * 10).ids
    old = table.extend(ids, 12)
    new = table.extend(ids, 1)
    used = table.stats().used
    assert table.commit(old, [1] * 120) == 0 and table.stats().adopted == 30
    table.check()
    assert table.stats().used == used
    table.commit(new, [1] * 10)
    assert table.stats().used == used - 30
    table.release([first, *ids.tolist()])
    assert table.stats().used == 0


def test_max_length_counts_what_open_steps_will_add(make):
    table = make(max_length=10, steps_in_flight=2)
    a = prefill(table, [1] * 6)
    old = table.extend([a], 3)
    for verb in (table.extend, table.can_extend):
        with pytest.raises(ValueError, match=r"11.*10"):
            verb([a], 2)
    new = table.extend([a], 1)
    table.abandon(new)
    table.abandon(old)
    table.abandon(table.extend([a], 4))


@pytest.mark.parametrize("verb", ["fork", "truncate", "reorder", "swap_out", "swap_list"])
def test_rows_of_any_open_step_are_refused(two, verb):
    table, a = two
    b, c = prefill(table, [2]), prefill(table, [3])
    table.extend([b], 1), table.extend([a], 1)
    more = {"truncate": ([0, 0],), "reorder": ([1, 0],)}.get(verb, ())
    before = snapshot(table, a, b, c)
    for named in (a, b):
        with pytest.raises(StepOpen, match=str(named)):
            getattr(table, verb)([c, named], *more)
    assert snapshot(table, a, b, c) == before
    for step in reversed(table.open_steps):
        table.abandon(step)


def test_a_row_shown_before_is_no_reason_to_write_into_a_block_that_goes_back(make):
    """The common case of extend, one token in a block at hand, must ask what the general case asks."""
    table = make()
    a = prefill(table, [1, 2, 3])
    [[b]] = table.fork([a], at=2)
    [block] = blocks_of(table, a)
    table.commit(table.extend([a, b], 0), [])
    step = table.extend([a, b], 1)
    assert block * 4 + 2 not in step.slots.tolist()
    table.abandon(step)


def test_the_sharer_that_wrote_in_place_goes_on_there(two):
    """Its token of the older step must not be lost: neither its id here, nor its K/V where attention comes later."""
    table, a = two
    [[kid]] = table.fork([a])
    old = table.extend([a, kid], 1)
    new = table.extend([kid], 1)
    assert len(new.copies) == 0 and new.slots[0] == old.slots[1] + 1
    table.commit(old, [5, 6])
    assert table.commit(new, [7]) == 1
    assert table.match([[1] * 6 + [6, 7, 0]])[0] == 8


def test_ids_published_are_those_that_were_committed(two):
    """Contract 2, whichever blocks the steps chose."""
    table, a = two
    [[kid]] = table.fork([a])
    old, new = table.extend([a, kid], 1), table.extend([kid], 1)
    table.commit(old, [5, 6])
    table.commit(new, [7])
    assert table.match([[1] * 6 + [6, 7, 0]])[0] == 8 and table.match([[1] * 6 + [0, 7, 0]])[0] == 6
