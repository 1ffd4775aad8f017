"""admit(priority=): which blocks of live tables get which priority. The policy itself is test_policies.py's."""

import pytest
from drive import feed, prefill

from pagedcache.core import LRU, BlockPool, PriorityTTL, SequenceTable

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared


@pytest.fixture
def make_levels():
    tables = []

    def build(num_blocks=32, ttls=(None, None, None), **bounds):
        tables.append(SequenceTable(BlockPool(num_blocks, PriorityTTL(ttls)), 4, **bounds))
        return tables[-1]

    yield build
    for table in tables:
        table.check()


def found(table, *prompts):
    return table.match([[*prompt, 0] for prompt in prompts]).tolist()


A, B, C = [1] * 8, [2] * 8, [3] * 8


def test_the_lower_priority_goes_first_whoever_was_released_last(make_levels):
    table = make_levels()
    for prompt, level in ((A, 2), (B, 1), (C, 0)):
        table.release([prefill(table, prompt, priority=level)])
    for left in ([8, 8, 0], [8, 0, 0], [0, 0, 0]):
        assert table.evict(2) == 2 and found(table, A, B, C) == left


def test_a_hit_of_a_higher_priority_raises_for_good(make_levels):
    table = make_levels()
    table.release([prefill(table, A), prefill(table, B, priority=1)])
    table.release(table.admit([[*A, 0]], priority=2).ids)
    table.release(table.admit([[*A, 0]]).ids)
    table.evict(2)
    assert found(table, A, B) == [8, 0]


def test_adoption_raises_too(make_levels):
    table = make_levels()
    first, second = table.admit([A]).ids, table.admit([A], priority=2).ids
    feed(table, first, [A])
    feed(table, second, [A])
    assert table.stats().adopted == 2
    table.release([*first, *second, prefill(table, B, priority=1)])
    table.evict(2)
    assert found(table, A, B) == [8, 0]


def test_kids_and_beams_have_their_parents_priority(make_levels):
    table = make_levels()
    high, low = prefill(table, [1] * 4, priority=2), prefill(table, [2] * 4)
    [[kid]] = table.fork([high])
    table.reorder([low, high], [1, 1])
    for sid, token in ((kid, 5), (low, 6)):
        feed(table, [sid], [[token] * 4])
    table.release([kid, low, high, prefill(table, C, priority=1)])
    table.evict(3)  # the first is what the low beam had before
    assert found(table, [1] * 4 + [5] * 4, [1] * 4 + [6] * 4, C) == [8, 8, 0]


def test_new_content_of_an_old_block_starts_anew(make_levels):
    table = make_levels(num_blocks=4)
    table.release([prefill(table, A, priority=2)])
    table.release([prefill(table, [*B, *B])])
    table.release([prefill(table, C, priority=1)])
    table.evict(2)
    assert found(table, C) == [8]


def test_lru_has_one_priority():
    table = SequenceTable(BlockPool(8, LRU()), 4)
    with pytest.raises(ValueError, match="priority is 1"):
        table.admit([[1]], priority=1)
    assert table.admit([[1]], priority=0).status[0] == 0


def test_a_priority_beyond_the_policys_is_refused(make_levels):
    table = make_levels()
    with pytest.raises(ValueError, match=r"priority is 3.*0 to 2"):
        table.admit([[1]], priority=3)
    assert table.stats().sequences == 0


@pytest.mark.parametrize(
    ("policy", "levels"), [(LRU(), (0, 0)), *[(PriorityTTL([None, None]), pair) for pair in ((0, 0), (0, 1), (1, 0))]]
)
def test_a_row_released_while_its_last_block_is_copied(policy, levels):
    """Contract 10: what continues a block goes first. The step holds the second block, the row the first."""
    table = SequenceTable(BlockPool(32, policy), 4)
    sid = prefill(table, A, priority=levels[0])
    table.truncate([sid], 6)
    step = table.extend([sid], 1)
    other = table.admit([[*A, 0]], priority=levels[1]).ids
    table.release([sid, *other])
    table.commit(step, [9])
    table.check()
    assert table.evict(1) == 1 and found(table, A) == [4]
    table.check()


def test_expired_blocks_of_swapped_sequences_go_first(make_levels):
    table = make_levels(ttls=(5, None, None))
    sid = prefill(table, A)
    table.swap_out([sid])
    table.release([prefill(table, B, priority=0)])
    table.pool.policy.advance(4)
    table.release(table.admit([[*B, 0]]).ids)
    table.pool.policy.advance(4)
    table.evict(2)
    assert found(table, A, B) == [0, 8]


def test_after_a_fence_the_time_to_live_begins_when_the_fence_retires(make_levels):
    """Nobody could have used the block's memory before."""
    table = make_levels(ttls=(5, None, None))
    sid = prefill(table, A)
    table.cover(1)
    table.release([sid])
    table.pool.policy.advance(9)
    table.retire(1)
    table.release([prefill(table, B, priority=1)])
    table.cover(0)
    table.pool.policy.advance(4)
    table.evict(0)
    assert found(table, A, B) == [8, 8] and table.evict(2) == 2
    assert found(table, A, B) == [0, 8]
