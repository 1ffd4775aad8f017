"""Eviction by priority and time to live in random tries, against a model that sorts."""

import random

import pytest
from drive import blocks_of, prefill

from pagedcache.core import LRU, BlockPool, PriorityTTL, SequenceTable

HOUR = 3600.0  # tests move the clock by hours, so that the time they take themselves does not matter


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


@pytest.mark.parametrize("seed", range(12))
def test_random_tries_against_the_model(driver, seed):
    """Random chains of few tokens share prefixes; priorities, releases, time and eviction come in any order."""
    choose = random.Random(seed)
    ttls = [[None, None], [HOUR * 1.5, HOUR * 3.5, None], [0, 0.5 * HOUR, 0.5 * HOUR, HOUR * 4.5]][seed % 3]
    policy, model = PriorityTTL(ttls), Model(ttls)
    table = SequenceTable(BlockPool(choose.choice([10, 24]), policy), 1)
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


@pytest.mark.parametrize("seed", range(4))
def test_one_level_that_never_expires_is_lru(driver, seed):
    """The same verbs leave the same blocks in the same order."""
    ours, theirs = (SequenceTable(BlockPool(12, policy), 2) for policy in (PriorityTTL([None]), LRU()))
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
