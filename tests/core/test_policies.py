"""Eviction by priority and time to live, against a model that sorts; and policies of strangers (R13)."""

import copy
import importlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from drive import blocks_of, prefill

from pagedcache.core import LRU, BlockPool, EvictionPolicy, PriorityTTL, SequenceTable

HOUR = 3600.0  # tests move the clock by hours, so that the time they take themselves does not matter

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="needs a C compiler"
)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module in policy_driver/: the policy's C face, for Python."""
    folder = tmp_path_factory.mktemp("driver")
    shutil.copytree(Path(__file__).parent / "policy_driver", folder, dirs_exist_ok=True)
    command = [sys.executable, "-P", "setup.py", "-q", "build_ext", "--inplace"]
    quick = os.environ | {"CFLAGS": "-O0 -g0"}  # it is built once and runs for a moment
    done = subprocess.run(command, cwd=folder, env=quick, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield importlib.import_module("policy_driver")
    sys.path.remove(str(folder))


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


@needs_compiler
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


@needs_compiler
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


@needs_compiler
def test_an_expired_block_is_found_until_it_is_taken(driver):
    policy = PriorityTTL([0])
    table = table_with(policy)
    leave(table, driver, [1, 1], 0)
    policy.advance(HOUR)
    assert cached(table, [1, 1]) == 2


@needs_compiler
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


@needs_compiler
def test_a_block_ranks_with_what_continues_it(driver):
    """The trunk has no priority of its own and is older than all; its branch lifts it."""
    table = table_with(PriorityTTL([None, None]))
    trunk = leave(table, driver, [1, 1, 1, 1], 0)
    other = leave(table, driver, [2, 2], 0)
    branch = leave(table, driver, [1, 1, 1, 1, 5, 5], 1)
    assert branch[:2] == trunk and [driver.level_of(table.pool, block) for block in branch] == [1, 1, 1]
    assert driver.order(table.pool) == [*other, *reversed(branch)]


@needs_compiler
def test_a_raise_never_lowers(driver):
    table = table_with(PriorityTTL([None, None, None]))
    sid = prefill(table, [1, 1])
    (block,) = blocks_of(table, sid)
    driver.set_level(table.pool, block, 1)
    for level, expected in ((0, 1), (2, 2), (1, 2)):
        driver.raise_level(table.pool, block, level)
        assert driver.level_of(table.pool, block) == expected


@needs_compiler
def test_a_priority_ends_with_the_content(driver):
    table = table_with(PriorityTTL([None, None]), num_blocks=1)
    (block,) = leave(table, driver, [1, 1], 1)
    driver.evict(table.pool, 1)
    assert driver.level_of(table.pool, block) == 0


# -- random tries, against a model ------------------------------------------------------------------


class Model:
    """Idle blocks with level and time; what goes next is found by looking at all of them."""

    def __init__(self, ttls: list[float | None]) -> None:
        self.ttls = ttls
        self.now = 0.0
        self.events = 0
        self.level: dict[int, int] = {}  # of published blocks
        self.idle: dict[int, tuple[float, int]] = {}  # block -> when it became idle, and how many did before

    def release(self, chain: list[int], held: set[int]) -> None:
        """One sequence lets its published blocks go; `held` are those of the others."""
        for depth in reversed(range(len(chain))):
            block = chain[depth]
            if block in held:
                continue
            self.events += 1
            self.idle[block] = (self.now, self.events)
            if depth:
                self.level[chain[depth - 1]] = max(self.level[chain[depth - 1]], self.level[block])

    def order(self) -> list[int]:
        def rank(block: int) -> tuple[bool, int, int]:
            ttl = self.ttls[self.level[block]]
            since, event = self.idle[block]
            return not (ttl is not None and self.now - since >= ttl), self.level[block], event

        return sorted(self.idle, key=rank)

    def evict(self, count: int) -> None:
        for block in self.order()[:count]:
            del self.idle[block], self.level[block]


@needs_compiler
@pytest.mark.parametrize("seed", range(12))
def test_random_tries_against_the_model(driver, seed):
    """Random chains of few tokens share prefixes; priorities, releases, time and eviction come in any order."""
    choose = random.Random(seed)
    ttls = [[None, None], [HOUR * 1.5, HOUR * 3.5, None], [0, 0.5 * HOUR, 0.5 * HOUR, HOUR * 4.5]][seed % 3]
    policy, model = PriorityTTL(ttls), Model(ttls)
    table = table_with(policy, num_blocks=choose.choice([10, 24]), block_size=1)
    rows: dict[int, list[int]] = {}
    mixed = 0  # moments at which priorities had to be told apart
    for _ in range(400):
        move = choose.choice(["admit", "admit", "release", "release", "advance", "evict"])
        if move == "admit":
            prompt = [choose.randrange(2) for _ in range(choose.randint(2, 7))]
            before = table.stats().evictions
            admission = table.admit([prompt])
            if admission.status[0] != 0:
                assert rows, "an idle pool must admit"
                continue
            sid, hits = int(admission.ids[0]), int(admission.cached[0])
            matched = [int(block) for block in table.block_table(sid)[:hits]]
            for block in matched:
                model.idle.pop(block, None)
            model.evict(table.stats().evictions - before)
            table.commit(table.extend([sid], [len(prompt) - hits]), prompt[hits:])
            rows[sid] = blocks_of(table, sid)
            for block in rows[sid][hits:]:
                if block in model.level:  # published by another before; adopted at commit
                    model.idle.pop(block, None)
                else:
                    model.level[block] = 0
                    driver.set_level(table.pool, block, 0)
            level = choose.randrange(len(ttls))
            for block in choose.choice([rows[sid], rows[sid][-1:]]):
                driver.raise_level(table.pool, block, level)
                model.level[block] = max(model.level[block], level)
        elif move == "release" and rows:
            sid = choose.choice(list(rows))
            chain = rows.pop(sid)
            table.release([sid])
            model.release(chain, {block for other in rows.values() for block in other})
        elif move == "advance":
            hours = choose.choice([0, 0, 1, 2])
            policy.advance(hours * HOUR)
            model.now += hours * HOUR
        elif move == "evict":
            count = choose.randint(0, min(3, len(model.idle)))
            driver.evict(table.pool, count)
            model.evict(count)
        assert driver.order(table.pool) == model.order()
        assert all(driver.level_of(table.pool, block) == level for block, level in model.level.items())
        mixed += len({model.level[block] for block in model.idle}) > 1
        table.check()  # no block before one that continues it
    assert table.stats().evictions > 20 and mixed > 20, "the tries were too tame to show anything"


@needs_compiler
@pytest.mark.parametrize("seed", range(4))
def test_one_level_that_never_expires_is_lru(driver, seed):
    """The same verbs leave the same blocks in the same order."""
    ours, theirs = table_with(PriorityTTL([None])), table_with(LRU())
    for table in (ours, theirs):
        choose = random.Random(seed)
        alive: list[int] = []
        for _ in range(60):
            prompt = [choose.randrange(2) for _ in range(choose.randint(2, 9))]
            if len(alive) == 2:
                table.release([alive.pop(choose.randrange(2))])
            alive.append(prefill(table, prompt))
        table.release(alive)
    assert driver.order(ours.pool) == driver.order(theirs.pool) != []
    assert ours.stats().evictions == theirs.stats().evictions > 0


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
@pytest.mark.parametrize("policy", [LRU(), PriorityTTL([1, None])])
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


@needs_compiler
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
