"""State groups: blocks that hold a sequence's state of fixed size, read by one step and written by the next."""

import gc
from itertools import chain, permutations

import pytest
from drive import feed

from pagedcache.core import BlockPool, SequenceTable, StateBlocks
from pagedcache.errors import OutOfBlocks, PositionReleased, StepClosed, StepOpen

PROMPT = [3, 1, 4, 1, 5, 9, 2]


def start(table, prompt=PROMPT):
    [sid] = table.admit([prompt]).ids.tolist()
    return sid


def state_of(table, sid):
    groups = range(1 + table.num_sides, len(table.stats().group_blocks))
    return [table.block_table(sid, group).tolist() for group in groups]


def test_steps_read_and_write_in_turn(make):
    table = make(40, state_blocks=[2, 1])
    sid = start(table)
    before = [[0, 0], [0]]
    for k in range(6):
        step = table.extend([sid], [1])
        assert [state.state_in[0].tolist() for state in step.states] == before
        after = [state.state_out[0].tolist() for state in step.states]
        assert not {*chain(*before)} & {*chain(*after)} and state_of(table, sid) == after
        table.check()
        table.commit(step, [k])
        assert state_of(table, sid) == after
        before = after
    assert table.stats().group_blocks == (2, 4, 2)  # the state and one to write next


def test_a_step_shows_states_until_it_closes(make):
    table = make(40, state_blocks=[1])
    one, other = start(table), start(table)
    feed(table, [one], [[1]])
    [[state]] = state_of(table, one)
    step = table.extend([other, one], [2, 0])
    [blocks] = step.states
    assert type(blocks) is StateBlocks and blocks.state_in.tolist() == [[0], [state]]
    assert blocks.state_out[1] == -1 and blocks.state_out[0] not in (0, -1, state)
    assert not blocks.state_out.flags.writeable
    table.commit(step, [1, 2])
    assert state_of(table, one) == [[state]]
    with pytest.raises(StepClosed):
        _ = step.states
    assert make().extend([], []).states == ()


def test_abandon_gives_the_state_back(make):
    table = make(40, state_blocks=[3])
    sid = start(table)
    for _ in range(2):
        before, used = state_of(table, sid), table.stats().used
        table.abandon(table.extend([sid], [2]))
        assert (state_of(table, sid), table.stats().used) == (before, used)
        table.check()
        feed(table, [sid], [[1]])


@pytest.mark.parametrize("flight", [1, 2, 3])
def test_steps_in_flight_read_what_the_older_one_writes(make, flight):
    table = make(40, state_blocks=[2], steps_in_flight=flight)
    sid, written, steps = start(table), [0, 0], []
    for k in range(10):
        if len(steps) == flight:
            table.commit(steps.pop(0), [k])
        steps.append(table.extend([sid], [1]))
        assert steps[-1].states[0].state_in[0].tolist() == written
        written = steps[-1].states[0].state_out[0].tolist()
        assert table.stats().group_blocks[1] == 2 * (flight + 1)
        table.check()
    while steps:
        table.abandon(steps.pop())
        table.check()


def test_forks_share_the_state(make):
    table = make(60, state_blocks=[2])
    sid = start(table)
    feed(table, [sid], [PROMPT])
    used = table.stats().used
    [kids] = table.fork([sid], 2).tolist()
    assert table.stats().used == used and {str(state_of(table, s)) for s in (sid, *kids)} == {str(state_of(table, sid))}
    step = table.extend([sid, *kids], [1, 1, 0])
    [(reads, writes)] = step.states
    assert reads[0].tolist() == reads[1].tolist() == reads[2].tolist()
    assert len({*writes[:2].ravel().tolist(), *reads[0].tolist()}) == 6
    table.commit(step, [1, 2])
    table.check()
    assert state_of(table, kids[1]) == [reads[2].tolist()] == [reads[0].tolist()]


def test_reorder_shares_the_state(make):
    table = make(60, state_blocks=[1, 2])
    ids = [start(table, [k, k, k]) for k in range(3)]
    feed(table, ids, [[k] * 3 for k in range(3)])
    before = [state_of(table, sid) for sid in ids]
    table.reorder(ids, [1, 1, 0])
    table.check()
    assert [state_of(table, sid) for sid in ids] == [before[1], before[1], before[0]]
    feed(table, ids, [[7], [8], [9]])
    table.check()


def test_a_state_cannot_be_rolled_back(make):
    table = make(60, state_blocks=[1])
    sid = start(table)
    feed(table, [sid], [PROMPT])
    for cut in (0, 6):
        with pytest.raises(PositionReleased, match="a state cannot be rolled back: the lowest position left is 7"):
            table.truncate([sid], [cut])
        with pytest.raises(PositionReleased, match="at is"):
            table.fork([sid], at=cut)
    assert table.truncate([sid], [7]) == 1  # what waits to be written
    table.check()
    feed(table, [sid], [[1]])
    assert table.position(sid) == 8


def test_accepted_tokens_are_all_or_none(make):
    table = make(60, state_blocks=[2], steps_in_flight=2)
    one, other = start(table), start(table)
    feed(table, [one, other], [[1, 2], [3]])
    before = state_of(table, one)
    step = table.extend([one, other], [3, 2])
    written = step.states[0].state_out[1].tolist()
    for accepted in ([[0], [0, 1]], [[0, 1], []]):
        with pytest.raises(PositionReleased, match=r"accepted has \d of 3 new tokens of handle .*accept all or none"):
            table.commit(step, [1] * 5, accepted)
    newer = table.extend([one], [1])
    with pytest.raises(StepOpen):
        table.commit(step, [1] * 5, [[], [0, 1]])
    table.abandon(newer)
    table.commit(step, [1] * 5, [[], [0, 1]])
    assert (state_of(table, one), state_of(table, other)) == (before, [written])
    assert (table.position(one), table.position(other)) == (2, 3)


def test_no_prefix_is_found(make):
    table = make(60, state_blocks=[1], side_groups=[(None, 0, False)])
    feed(table, [start(table)], [PROMPT])
    assert table.match([PROMPT]).tolist() == [0]
    assert table.match([PROMPT], by_group=True).tolist() == [[4, 4, 0]]
    assert table.admit([PROMPT]).cached.tolist() == [0]


def test_swapped_and_back(make):
    table = make(60, state_blocks=[2])
    sid, other = start(table), start(table)
    feed(table, [sid, other], [PROMPT, PROMPT[:3]])
    state, [[kid]] = state_of(table, other), table.fork([other]).tolist()
    own = state_of(table, sid)[0]
    blocks, indptr = table.swap_list([sid, other])
    assert set(own) <= set(blocks[: indptr[1]].tolist()) and len(blocks) == 4 and indptr[2] == 4  # other's is kid's too
    table.swap_out([sid, other], blocks)
    table.check()
    back = table.swap_in([sid, other]).tolist()
    assert [back[blocks.tolist().index(block)] for block in own] == state_of(table, sid)[0]
    assert state_of(table, other) == state == state_of(table, kid)
    table.check()
    table.swap_out([sid])
    assert table.begin_swap_in([sid]).size == 4
    table.cancel_swap_in([sid])
    table.release([sid])
    feed(table, [other, kid], [[1], [2]])


def test_admit_promises_every_step_of_the_prompt(make):
    for flight in (1, 2):
        table = make(2 + 3 * (flight + 1), state_blocks=[3], steps_in_flight=flight)
        sid = start(table)
        assert table.stats().free == 0 and table.admit([[1]]).status.tolist() == [1]
        steps = []
        for k in range(len(PROMPT)):
            if len(steps) == flight:
                table.commit(steps.pop(0), [PROMPT[k]])
            steps.append(table.extend([sid], [1]))
    assert make(7, state_blocks=[3]).admit([PROMPT]).status.tolist() == [2]


def test_out_of_blocks_changes_nothing(make):
    table = make(6, state_blocks=[2])
    sid = start(table, [1, 2])
    feed(table, [sid], [[1, 2]])
    [[kid]] = table.fork([sid]).tolist()  # shares the only state, and has none to write
    free, state = table.stats().free, state_of(table, sid)
    assert free == 1 and not table.can_extend([kid], [1])
    with pytest.raises(OutOfBlocks, match="extend needs 3 blocks, 1 of 6"):
        table.extend([kid], [1])
    assert (table.stats().free, state_of(table, sid)) == (free, state)
    table.check()
    table.release([sid])
    assert table.can_extend([kid], [1])


def test_fenced_states_are_not_written_at_once(make):
    table = make(60, state_blocks=[1])
    sid = start(table)
    feed(table, [sid], [[1]])
    table.cover(1)
    step = table.extend([sid], [1])
    read = step.states[0].state_in[0, 0]
    table.commit(step, [2])
    assert table.stats().waiting == 1
    step = table.extend([sid], [1])
    assert step.states[0].state_out[0, 0] != read
    table.abandon(step)
    table.check()
    assert table.retire(1) == 2


def test_released_in_an_open_step(make):
    table = make(60, state_blocks=[2], steps_in_flight=2)
    sid = start(table)
    first, second = table.extend([sid], [2]), table.extend([sid], [1])
    table.release([sid])
    table.check()
    table.commit(first, [1, 2], [[]])
    table.check()
    table.abandon(second)
    assert table.stats().used == 0


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_every_order_of_release(order):
    pool = BlockPool(80)
    table = SequenceTable(pool, 4, state_blocks=[1, 2], side_groups=[(5, 0, False)], max_step_tokens=7)
    parent = start(table)
    feed(table, [parent], [PROMPT])
    [[one, two]] = table.fork([parent], 2).tolist()
    feed(table, [one], [[8]])
    [[last]] = table.fork([one]).tolist()
    table.swap_out([two])
    family = [parent, one, two, last]
    for k in order:
        table.release([family[k]])
        table.check()
    assert (table.stats().used, sum(table.stats().group_blocks)) == (0, 0)


def test_a_table_that_goes_with_its_steps_open():
    pool = BlockPool(40)
    table = SequenceTable(pool, 4, state_blocks=[2], steps_in_flight=2)
    sid = start(table)
    feed(table, [sid], [[1]])
    steps = [table.extend([sid], [1]), table.extend([sid], [1])]
    del steps, table
    gc.collect()  # open steps and their table hold each other
    assert pool.num_free == 40


@pytest.mark.parametrize(
    ("blocks", "error"), [([0], ValueError), ([-1], ValueError), ([1.5], TypeError), ([1 << 20, 1], ValueError)]
)
def test_bad_sizes(blocks, error):
    with pytest.raises(error, match="state_blocks"):
        SequenceTable(BlockPool(8), 4, state_blocks=blocks)
