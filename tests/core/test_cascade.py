"""Which adjacent sequences of a step share leading blocks, for kernels that compute those once. DESIGN 4.6."""

import numpy as np
import pytest
from drive import feed, prefill

from pagedcache.core import Step
from pagedcache.errors import StepClosed

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared


def shared(table, ids, counts=1):
    """What a step over these rows says, checked against its own tables."""
    step = table.extend(ids, counts, cascade=True)
    groups = step.shared_prefixes
    assert groups.dtype == np.int32 and groups.shape == (len(groups), 3) and not groups.flags.writeable
    whole = (step.kv_lens - np.diff(step.qo_indptr)) // table.block_size
    end = 0
    for first, count, blocks in groups.tolist():
        assert end <= first and count >= 2 and 1 <= blocks <= whole[first : first + count].min()
        assert (step.block_tables[first : first + count, :blocks] == step.block_tables[first, :blocks]).all()
        end = first + count
    assert end <= len(ids)
    told = groups.tolist()
    table.abandon(step)
    return told


@pytest.fixture
def family(make):
    """A table, a parent of 21 tokens, and five kids."""
    table = make(num_blocks=100)
    parent = prefill(table, range(21))
    return table, [parent, *table.fork([parent], 5)[0].tolist()]


def test_nobody_asked(family):
    table, ids = family
    step = table.extend(ids, 1)
    assert step.shared_prefixes is None
    table.abandon(step)
    step = table.extend(ids, 1, cascade=True)
    assert step.shared_prefixes.tolist() == [[0, 6, 5]]
    table.abandon(step)
    with pytest.raises(StepClosed):
        _ = step.shared_prefixes
    step = table.extend(ids, 1)
    assert step.shared_prefixes is None, "what an earlier step found is not this one's"
    table.abandon(step)


def test_a_family_shares_its_whole_blocks(family):
    table, ids = family
    assert shared(table, ids) == [[0, 6, 5]]
    assert shared(table, ids[:2], [0, 3]) == [[0, 2, 5]]


def test_only_blocks_before_every_new_token_count(family):
    table, ids = family
    table.truncate(ids[2:3], [11])
    assert shared(table, ids[:3]) == [[0, 2, 5]]
    table.truncate(ids[:3], 9)
    assert shared(table, ids[:3]) == [[0, 3, 2]]
    table.truncate(ids[:3], 3)
    assert shared(table, ids[:3]) == []


def test_strangers_share_nothing(make):
    table = make(num_blocks=100)
    assert shared(table, [prefill(table, [k] * 9) for k in range(4)]) == []
    assert shared(table, []) == []
    assert shared(table, [prefill(table, [1] * 9)]) == []


def test_equal_prompts_share_what_they_found(make):
    table = make(num_blocks=100)
    ids = [prefill(table, [1] * 9 + [k]) for k in range(3)]
    assert shared(table, ids) == [[0, 3, 2]]


def test_only_neighbours_are_joined(family):
    table, ids = family
    stranger = prefill(table, [99] * 9)
    assert shared(table, [ids[0], stranger, ids[1]]) == []
    assert shared(table, [stranger, *ids[:2]]) == [[1, 2, 5]]


def test_a_short_common_prompt_does_not_tear_groups_apart(make):
    """Two conversations of two rows each, under one system prompt of one block."""
    table = make(num_blocks=100)
    ids = []
    for k in range(2):
        sid = prefill(table, [1, 2, 3, 4, *[10 + k] * 21])
        ids += [sid, int(table.fork([sid])[0, 0])]
    assert shared(table, ids) == [[0, 2, 6], [2, 2, 6]]


def test_a_padded_row_shares_nothing(make):
    table = make(num_blocks=100)
    a = prefill(table, [1] * 9, pads=[4])
    [[b]] = table.fork([a])
    assert shared(table, [a, b]) == []


def test_rows_that_diverged_share_what_they_have_in_common(family):
    table, ids = family
    feed(table, ids, [[100 + k] * 9 for k in range(6)])
    assert shared(table, ids) == [[0, 6, 5]]


def test_from_arrays_takes_a_plan_and_refuses_a_wrong_one():
    tables, lens, indptr = [[3, 4, 5], [3, 4, 6]], [9, 10], [0, 1, 2]
    given = Step.from_arrays(tables, lens, indptr, block_size=4, shared_prefixes=[[0, 2, 2]])
    assert given.shared_prefixes.tolist() == [[0, 2, 2]]
    assert Step.from_arrays(tables, lens, indptr, block_size=4).shared_prefixes is None
    for wrong in ([[0, 2, 3]], [[0, 1, 1]], [[0, 3, 1]], [[-1, 2, 1]], [[0, 2, 0]], [[0, 2, 1], [1, 2, 1]], [0, 2, 1]):
        with pytest.raises(ValueError, match="share"):
            Step.from_arrays(tables, lens, indptr, block_size=4, shared_prefixes=wrong)
