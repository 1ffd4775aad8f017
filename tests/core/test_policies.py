"""Eviction by priority and time to live: what goes first, what is refused; and policies of strangers (R13)."""

import copy
from types import ModuleType
from typing import Any

import pytest
from drive import blocks_of, prefill

from pagedcache.core import (
    ARC,
    LFUDA,
    LRU,
    S3FIFO,
    BlockPool,
    EvictionPolicy,
    NamespaceQuotas,
    NeverHitFirst,
    PriorityTTL,
    SequenceTable,
)

HOUR = 3600.0  # tests move the clock by hours, so that the time they take themselves does not matter


def table_with(policy: EvictionPolicy | None, num_blocks: int = 12, block_size: int = 2) -> SequenceTable:
    return SequenceTable(BlockPool(num_blocks, policy), block_size)


def cached(table: SequenceTable, prompt: list[int]) -> int:
    """Tokens of the prompt that are found, all of its full blocks if possible."""
    return int(table.match([[*prompt, 0]])[0])


# -- what goes first --------------------------------------------------------------------------------


def leave(table: SequenceTable, driver: ModuleType, prompt: list[int], level: int) -> list[int]:
    """Publish a prompt and let it go; its last block with a level, the others by what continues them."""
    sid = prefill(table, prompt)
    blocks = blocks_of(table, sid)
    driver.set_level(table.pool, blocks[-1], level)
    table.release([sid])
    return blocks


def test_the_lowest_priority_goes_first(driver):
    table = table_with(PriorityTTL([None, None, None]))
    high = leave(table, driver, [1, 1, 1, 1], 2)
    low = leave(table, driver, [2, 2, 2, 2], 0)
    middle = leave(table, driver, [3, 3, 3, 3], 1)
    lowest = leave(table, driver, [4, 4], 0)
    tails_first = [*reversed(low), *lowest, *reversed(middle), *reversed(high)]
    assert driver.order(table.pool) == tails_first
    table.check()
    driver.evict(table.pool, 5)
    assert [cached(table, [t] * 4) for t in (1, 2, 3)] == [4, 0, 0]
    table.check()


def test_expired_blocks_go_first(driver):
    policy = PriorityTTL([1.5 * HOUR, 2.5 * HOUR, None])
    table = table_with(policy)
    first, second, third = (leave(table, driver, [t, t], level) for t, level in ((1, 2), (2, 1), (3, 0)))
    policy.advance(2 * HOUR)
    young = leave(table, driver, [4, 4], 0)
    assert driver.order(table.pool) == [*third, *young, *second, *first]
    policy.advance(HOUR)  # now level 1 has expired too, and nothing else has
    assert driver.order(table.pool) == [*third, *second, *young, *first]
    policy.advance(100 * HOUR)
    assert driver.order(table.pool) == [*third, *young, *second, *first]
    driver.evict(table.pool, 3)
    assert [cached(table, [t, t]) for t in (1, 2, 3, 4)] == [2, 0, 0, 0]


def test_an_expired_block_is_found_until_it_is_taken(driver):
    policy = PriorityTTL([0])
    table = table_with(policy)
    leave(table, driver, [1, 1], 0)
    policy.advance(HOUR)
    assert cached(table, [1, 1]) == 2


def test_a_hit_starts_a_new_life(driver):
    policy = PriorityTTL([1.5 * HOUR, None])
    table = table_with(policy)
    for token in (1, 2):
        leave(table, driver, [token, token], 0)
    policy.advance(HOUR)
    table.release(table.admit([[1, 1, 0]]).ids)
    policy.advance(HOUR)
    leave(table, driver, [3, 3], 1)
    driver.evict(table.pool, 1)
    assert [cached(table, [t, t]) for t in (1, 2, 3)] == [2, 0, 2]


def test_a_block_ranks_with_what_continues_it(driver):
    """The trunk has no priority of its own and is older than all; its branch lifts it."""
    table = table_with(PriorityTTL([None, None]))
    trunk = leave(table, driver, [1, 1, 1, 1], 0)
    other = leave(table, driver, [2, 2], 0)
    branch = leave(table, driver, [1, 1, 1, 1, 5, 5], 1)
    assert branch[:2] == trunk and [driver.level_of(table.pool, block) for block in branch] == [1, 1, 1]
    assert driver.order(table.pool) == [*other, *reversed(branch)]


def test_a_raise_never_lowers(driver):
    table = table_with(PriorityTTL([None, None, None]))
    sid = prefill(table, [1, 1])
    (block,) = blocks_of(table, sid)
    driver.set_level(table.pool, block, 1)
    for level, expected in ((0, 1), (2, 2), (1, 2)):
        driver.raise_level(table.pool, block, level)
        assert driver.level_of(table.pool, block) == expected


def test_a_priority_ends_with_the_content(driver):
    table = table_with(PriorityTTL([None, None]), num_blocks=1)
    (block,) = leave(table, driver, [1, 1], 1)
    driver.evict(table.pool, 1)
    assert driver.level_of(table.pool, block) == 0


# -- construction -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ttls", "error", "message"),
    [
        ([], ValueError, "ttls has 0 entries; it must have 1 to 64"),
        ([1] * 65, ValueError, "ttls has 65 entries"),
        ([2, 1], ValueError, r"ttls is \[2, 1\]; no priority may expire before a lower one"),
        ([None, 5], ValueError, "no priority may expire before"),
        ([-1], ValueError, "a ttl is -1 seconds; it must be 0 to 1000000000"),
        ([float("nan")], ValueError, "a ttl is nan"),
        ([1e300], ValueError, "a ttl is 1e"),
        (["60"], TypeError, "a ttl must be a number of seconds, not str"),
        ([True], TypeError, "a ttl must be a number of seconds, not bool"),
        ("60", TypeError, "ttls must be a list of seconds"),
        (60, TypeError, "ttls must be a list of seconds"),
    ],
)
def test_wrong_times_to_live_are_refused(ttls, error, message):
    with pytest.raises(error, match=message):
        PriorityTTL(ttls)


def test_the_clock_only_goes_forward():
    policy = PriorityTTL([60])
    for wrong in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="seconds is"):
            policy.advance(wrong)
    for _ in range(2):
        policy.advance(1e9)
    with pytest.raises(ValueError, match="too far ahead"):
        policy.advance(1e9)


@pytest.mark.parametrize("wrong", [LRU, "lru", 7, EvictionPolicy()])
def test_what_is_no_policy_is_refused(wrong: Any):
    with pytest.raises(TypeError, match="policy must be"):
        BlockPool(4, wrong)


@pytest.mark.thread_unsafe  # its arguments are shared
@pytest.mark.parametrize(
    "policy", [LRU(), PriorityTTL([1, None]), ARC(), LFUDA(), NeverHitFirst(), S3FIFO(), NamespaceQuotas({})]
)
def test_a_policy_serves_one_pool(policy):
    pool = BlockPool(4, policy=policy)
    assert pool.policy is policy
    with pytest.raises(ValueError, match="has a pool already"):
        BlockPool(4, policy)
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        copy.copy(policy)


def test_lru_is_the_default():
    assert type(BlockPool(4).policy) is LRU


def test_a_pool_counts_the_bytes_of_its_policy():
    assert BlockPool(100, PriorityTTL([1])).nbytes == BlockPool(100).nbytes + 101 * 9


def test_r13_a_strangers_policy_hears_the_documented_events(driver):
    """R13: a policy written elsewhere, in Cython, with nothing but the pool around it."""
    policy = driver.Queue()
    table = table_with(policy, num_blocks=4)
    sid = prefill(table, [1, 1, 2, 2])
    first, second = blocks_of(table, sid)
    table.release([sid])
    (again,) = table.admit([[1, 1, 9]]).ids
    table.check()
    table.admit([[7] * 4])
    table.release([again])
    expected = [("insert", second), ("insert", first), ("remove", first), ("pop", second), ("insert", first)]
    assert policy.log == expected
