"""Speculation: depths of a tree, moves, and commits of the accepted path. DESIGN 3 (Commit)."""

from functools import partial

import numpy as np
import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot
from holdings import agreeing

from pagedcache.core import Step
from pagedcache.errors import StepClosed, StepOpen

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared

#        0
#      /   \
#     1     2
#    / \     \
#   3   4     5
DEPTHS = [0, 1, 1, 2, 2, 2]


@pytest.fixture
def tree(make):
    """A table, a row of six tokens, and an open step of a tree of six more."""
    table = make()
    sid = prefill(table, range(6))
    return table, sid, table.extend([sid], 6, depths=DEPTHS)


def test_positions_follow_depths_and_slots_do_not(tree):
    table, sid, step = tree
    assert step.positions.tolist() == [6, 7, 7, 8, 8, 8]
    blocks = blocks_of(table, sid)
    assert step.slots.tolist() == [blocks[i // 4] * 4 + i % 4 for i in range(6, 12)]
    assert step.kv_lens.tolist() == [12]


def test_without_depths_positions_run_on(make):
    table = make()
    sid = prefill(table, range(6), pads=[3])
    step = table.extend([sid], 3)
    assert step.positions.tolist() == [6, 7, 8]
    table.abandon(step)
    step = table.extend([sid], 3, depths=[0, 1, 1])
    assert step.positions.tolist() == [6, 7, 7] and step.kv_pads[0] == 3
    table.abandon(step)


def test_moves_name_the_slots_of_a_path(tree):
    _, _, step = tree
    slots = step.slots.tolist()
    src, dst = step.moves([[0, 2, 5]])
    assert src.dtype == dst.dtype == np.int64
    assert src.tolist() == [slots[2], slots[5]] and dst.tolist() == [slots[1], slots[2]]
    for nothing in ([[0, 1]], [[0]], [[]]):
        src, dst = step.moves(nothing)
        assert len(src) == len(dst) == 0 and src.dtype == dst.dtype == np.int64


@pytest.mark.parametrize(("path", "found"), [([0, 2, 5], 8), ([0, 1], 8), ([0], 4), ([], 4)])
def test_only_accepted_tokens_count(tree, path, found):
    table, sid, step = tree
    tokens = [60, 61, 62, 63, 64, 65]
    table.commit(step, tokens, accepted=[path])
    assert position_of(table, sid) == 6 + len(path) and len(blocks_of(table, sid)) == -(-(6 + len(path)) // 4)
    kept = [tokens[i] for i in path]
    assert table.match([[*range(6), *kept, 0, 0]])[0] == found
    in_order = 6 + agreeing(kept[:2], [60, 61])
    assert table.match([[*range(6), 60, 61, 63, 0]])[0] == (in_order if found == 8 else 4)


def test_the_row_goes_on_behind_the_accepted_path(tree):
    table, sid, step = tree
    table.commit(step, [60, 61, 62, 63, 64, 65], accepted=[[0, 2, 5]])
    step = table.extend([sid], 3)
    assert step.positions.tolist() == [9, 10, 11]
    assert table.commit(step, [1, 2, 3]) == 1
    assert table.match([[*range(6), 60, 62, 65, 1, 2, 3, 0]])[0] == 12


def test_none_means_all_and_a_full_path_is_the_same(make):
    for accepted in (None, [[0, 1, 2]], [np.arange(3)], np.arange(3)[None]):
        table = make()
        sid = prefill(table, range(6))
        assert table.commit(table.extend([sid], 3), [6, 7, 8], accepted=accepted) == 1
        assert position_of(table, sid) == 9 and table.match([range(9)])[0] == 8


def test_rows_of_a_batch_have_paths_of_their_own(make):
    table = make()
    ids = [prefill(table, [10 * k] * 5) for k in range(4)]
    step = table.extend(ids, [3, 0, 2, 4], depths=[0, 1, 1, 0, 0, 0, 1, 2, 3])
    src, _ = step.moves([[0, 2], [], [1], [0, 1]])
    slots = step.slots.tolist()
    assert src.tolist() == [slots[2], slots[4]]
    table.commit(step, range(100, 109), accepted=[[0, 2], [], [1], [0, 1]])
    assert [position_of(table, s) for s in ids] == [7, 5, 6, 7]
    feed(table, ids, [[1], [1, 1, 1], [1, 1], [1]])
    prompts = [
        [0] * 5 + [100, 102, 1, 0],
        [10] * 5 + [1, 1, 1, 0],
        [20] * 5 + [104, 1, 1, 0],
        [30] * 5 + [105, 106, 1, 0],
    ]
    assert table.match(prompts).tolist() == [8] * 4


def test_what_admit_allotted_stays(make):
    table = make()
    [sid] = table.admit([range(4)], reserve=5).ids
    feed(table, [sid], [range(4)])
    table.commit(table.extend([sid], 8), range(8), accepted=[[0]])
    assert len(blocks_of(table, sid)) == 3, "the allotted nine positions, less than the step took"


def test_unknown_tokens_advance_by_the_path_and_publish_no_more(tree):
    table, sid, step = tree
    assert table.commit(step, None, accepted=[[0, 2, 5]]) == 0
    assert position_of(table, sid) == 9 and feed(table, [sid], [[1, 2, 3]]) == 0
    assert table.match([range(9)])[0] == 4


def test_a_copied_row_of_which_nothing_is_accepted_keeps_its_copy(make):
    table = make()
    sid = prefill(table, range(6))
    [[kid]] = table.fork([sid])
    step = table.extend([sid], 3)
    [[_, copy]] = step.copies.tolist()
    table.commit(step, [1, 2, 3], accepted=[[]])
    assert blocks_of(table, sid)[1:] == [copy] and position_of(table, sid) == 6
    assert feed(table, [sid, kid], [[6, 7], [8, 9]]) == 2
    assert table.match([range(9), [*range(6), 8, 9, 0]]).tolist() == [8, 8]


def test_a_released_row_may_have_any_valid_path(make):
    table = make()
    a, b = prefill(table, [1] * 6), prefill(table, [2] * 6)
    step = table.extend([a, b], 3)
    table.release([a])
    table.commit(step, [1, 1, 1, 2, 2, 2], accepted=[[0], [0, 1]])
    assert position_of(table, b) == 8 and table.match([[1] * 9, [2] * 9]).tolist() == [4, 8]


BAD_PATHS = {
    "beyond": [[6]],
    "negative": [[-1]],
    "falling": [[1, 0]],
    "twice": [[0, 0]],
    "a root too deep": [[1]],
    "a step skipped": [[0, 3]],
    "too few rows": [],
    "too many rows": [[0], [0]],
    "flat": [0, 1],
    "a float": [[0.0]],
    "a bool": [[True]],
    "huge": [[2**40]],
    "text": "01",
    "none inside": [None],
}


@pytest.mark.parametrize("verb", ["commit", "check_commit", "moves"])
@pytest.mark.parametrize("bad", BAD_PATHS)
def test_paths_that_cannot_be_are_refused_and_the_step_stays_open(tree, verb, bad):
    table, sid, step = tree
    before = snapshot(table, sid)
    call = step.moves if verb == "moves" else partial(getattr(table, verb), step, range(6))
    with pytest.raises((ValueError, TypeError)):
        call(BAD_PATHS[bad])
    assert snapshot(table, sid) == before and not step.closed
    table.commit(step, range(6), [[0, 1, 4]])
    assert position_of(table, sid) == 9


def test_an_error_names_index_place_and_depth(tree):
    table, _, step = tree
    with pytest.raises(ValueError, match=r"holds 9 at 1 for sequence 0.*0 to 5"):
        table.commit(step, range(6), [[0, 9]])
    with pytest.raises(ValueError, match=r"new token 3.*depth 2.*depth 1"):
        table.commit(step, range(6), [[0, 3]])


def test_a_whole_tree_is_no_path(tree):
    """Its keys were rotated for other positions than those where they would stand."""
    table, sid, step = tree
    before = snapshot(table, sid)
    for verb in (table.commit, table.check_commit):
        with pytest.raises(ValueError, match="accepted"):
            verb(step, range(6))
    assert snapshot(table, sid) == before
    table.commit(step, range(6), [[0]])


def test_depths_that_run_on_are_a_path(make):
    table = make()
    sid = prefill(table, range(6))
    assert table.commit(table.extend([sid], 3, depths=[0, 1, 2]), [6, 7, 8]) == 1


@pytest.mark.parametrize("verb", ["extend", "can_extend"])
@pytest.mark.parametrize(
    "bad",
    [[], [0], [0] * 7, [0, 1, 2, 3, 4, 6], [-1] * 6, [2**31] * 6, [0.0] * 6, [[0] * 6], "000000", [None] * 6, 0],
)
def test_depths_are_one_for_each_token_and_less_than_the_count(make, verb, bad):
    table = make()
    sid = prefill(table, range(6))
    before = snapshot(table, sid)
    with pytest.raises((ValueError, TypeError, OverflowError)):
        getattr(table, verb)([sid], 6, depths=bad)
    assert snapshot(table, sid) == before
    table.abandon(table.extend([sid], 6, depths=[0] * 6))


def test_depths_of_one_row_do_not_reach_into_the_next(make):
    table = make()
    ids = [prefill(table, [1] * 3), prefill(table, [2] * 6)]
    with pytest.raises(ValueError, match="sequence 0 has 2"):
        table.extend(ids, [2, 4], depths=[0, 2, 0, 1, 2, 3])
    step = table.extend(ids, [2, 4], depths=[1, 0, 0, 3, 1, 2])
    assert step.positions.tolist() == [4, 3, 6, 9, 7, 8]
    table.abandon(step)


def test_tokens_that_a_newer_step_goes_on_from_are_not_dropped(make):
    table = make(steps_in_flight=2)
    a, b = prefill(table, [1] * 6), prefill(table, [2] * 6)
    old, new = table.extend([a, b], 3), table.extend([b], 1)
    before = snapshot(table, a, b)
    for verb in (table.commit, table.check_commit):
        with pytest.raises(StepOpen, match=str(b)):
            verb(old, [1] * 6, [[0], [0, 1]])
    assert snapshot(table, a, b) == before and not old.closed
    table.check_commit(old, [1] * 6, [[0], [0, 1, 2]])
    assert not old.closed
    table.commit(old, [1] * 6, [[0], [0, 1, 2]])
    table.commit(new, [3], [[]])
    assert [position_of(table, s) for s in (a, b)] == [7, 9]


def test_a_row_released_from_a_newer_step_may_be_rolled_back(make):
    table = make(steps_in_flight=2)
    a = prefill(table, [1] * 6)
    old, new = table.extend([a], 3), table.extend([a], 1)
    table.release([a])
    table.commit(old, [1] * 3, [[0]])
    table.commit(new, [1])
    assert table.stats().used == 0


@pytest.mark.parametrize(
    ("tokens", "accepted"), [([1], None), ([1, -2, 3], None), (None, [[5]]), ([1.0] * 3, None), ([1] * 3, [[1, 0]])]
)
def test_check_commit_raises_what_commit_would_and_changes_nothing(make, tokens, accepted):
    table = make()
    sid = prefill(table, range(6))
    step = table.extend([sid], 3)
    before = snapshot(table, sid)
    with pytest.raises((ValueError, TypeError)) as checked:
        table.check_commit(step, tokens, accepted)
    with pytest.raises(type(checked.value)) as committed:
        table.commit(step, tokens, accepted)
    assert str(checked.value) == str(committed.value) and snapshot(table, sid) == before
    assert table.check_commit(step, [1] * 3, [[0]]) is None and snapshot(table, sid) == before
    table.abandon(step)
    for verb in (table.check_commit, table.commit):
        with pytest.raises(StepClosed):
            verb(step, [1] * 3, [[0]])


def test_moves_of_a_closed_step_and_of_one_from_arrays(tree):
    table, _, step = tree
    table.abandon(step)
    with pytest.raises(StepClosed):
        step.moves([[0]])
    free = Step.from_arrays([[3, 1]], [6], [0, 3], block_size=4, positions=[3, 4, 4])
    assert [x.tolist() for x in free.moves([[0, 2]])] == [[5], [4]]
