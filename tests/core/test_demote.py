"""demote: what only these prompts use goes before anything else."""

import pytest
from drive import prefill, snapshot

from pagedcache import salt
from pagedcache.core import (
    ARC,
    LFUDA,
    LRU,
    S3FIFO,
    BlockPool,
    NamespaceQuotas,
    NeverHitFirst,
    PriorityTTL,
    SequenceTable,
)

pytestmark = pytest.mark.thread_unsafe  # the fixture's table is shared

POLICIES = {
    "LRU": LRU,
    "ARC": ARC,
    "LFUDA": LFUDA,
    "NeverHitFirst": NeverHitFirst,
    "S3FIFO": S3FIFO,
    "PriorityTTL": lambda: PriorityTTL([None, None]),
    "expiring": lambda: PriorityTTL([3600]),
    "quotas": lambda: NamespaceQuotas({None: 20, "n": 9}),
}


@pytest.fixture(params=POLICIES)
def table(request):
    """Three idle prompts of four blocks of one token, used once, twice and three times."""
    table = SequenceTable(BlockPool(24, POLICIES[request.param]()), 1)
    for token in (1, 2, 3):
        for _ in range(token):
            table.release([prefill(table, [token, 5, 6, 7])])
    yield table
    table.check()


def found(table, *prompts):
    return table.match([[*prompt, 0] for prompt in prompts]).tolist()


A, B, C = [1, 5, 6, 7], [2, 5, 6, 7], [3, 5, 6, 7]


def test_what_is_demoted_goes_first_tail_first(table):
    assert table.demote([C]) == 4
    table.check()
    for left in (3, 2, 1, 0):
        assert table.evict(1) == 1
        assert found(table, A, B, C) == [4, 4, left]


def test_it_is_found_until_then_and_a_hit_forgives(table):
    table.demote([C])
    assert found(table, C) == [4]
    table.release([prefill(table, C)])
    table.demote([A])
    table.evict(4)
    assert found(table, A, B, C) == [0, 4, 4]


def test_what_others_continue_stays(table):
    """A system prompt, say: the branches of the tree are demoted, not its trunk."""
    table.release([prefill(table, [3, 5, 9, 9])])
    assert table.demote([C]) == 2
    table.evict(2)
    assert found(table, C, [3, 5, 9, 9]) == [2, 4]
    assert table.demote([[3, 5, 9, 9]]) == 4, "nothing else is left of it"


def test_a_beginning_alone_demotes_nothing(table):
    assert table.demote([[3, 5]]) == 0 == table.demote([[3, 9]]) == table.demote([[]]) == table.demote([])


def test_what_is_held_stays_and_protects_what_it_continues(table):
    [held] = table.admit([[3, 5, 6, 0]]).ids
    table.pin([[2, 5]], "beginning")
    assert table.demote([C, B]) == 1 + 2
    table.evict(3)
    assert found(table, A, B, C) == [4, 2, 3]
    table.release([held])


def test_twice_is_once(table):
    assert table.demote([A]) == 4 == table.demote([A])
    assert table.demote([B]) == 4
    assert table.evict(8) == 8 and found(table, A, B, C) == [0, 0, 4]


def test_each_border_has_its_own(table):
    table.release([prefill(table, A, namespace="n"), prefill(table, A, keys=[[salt("s")]])])
    assert table.demote([A], namespace="n") == 4
    table.evict(4)
    assert table.match([[*A, 0]], namespace="n")[0] == 0 and found(table, A, B, C) == [4, 4, 4]
    assert table.demote([A], keys=[[salt("s")]]) == 4 == table.demote([A])


@pytest.mark.parametrize("bad", [None, 5, [5], "ab", [[-1]], [[2**31]], [[1.5]]])
def test_bad_prompts_demote_nothing(table, bad):
    before = snapshot(table)
    with pytest.raises((ValueError, TypeError)):
        table.demote(bad)
    assert snapshot(table) == before
