"""Eviction policies that hear of uses (ARC, LFUDA, NeverHitFirst, S3FIFO) in random tries, against plain models."""

import random

import pytest
from drive import blocks_of, prefill
from usage_models import Adaptive, Fifo, Frequency, Hits, Model, Recency

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

POLICIES = {ARC: Adaptive, LFUDA: Frequency, LRU: Recency, NeverHitFirst: Hits, S3FIFO: Fifo}
LEARNING = [policy for policy in POLICIES if policy is not LRU]


class Pair:
    """A table with blocks of one token, and a model that is told what its verbs do."""

    def __init__(self, num_blocks: int, policy: EvictionPolicy, model: Model) -> None:
        self.pool = BlockPool(num_blocks, policy)
        self.table = SequenceTable(self.pool, 1)
        self.model = model
        self.content: dict[int, tuple[int, ...]] = {}  # of published blocks
        self.rows: dict[int, list[int]] = {}  # handle -> published blocks

    def admit(self, prompt: list[int]) -> int | None:
        """Admit the prompt and commit all of it; None if there is no room."""
        before = self.table.stats().evictions
        admission = self.table.admit([prompt])
        if admission.status[0] != 0:
            return None
        sid, hits = int(admission.ids[0]), int(admission.cached[0])
        matched = [tuple(prompt[: k + 1]) for k in range(hits)]
        for content in matched:
            if content in self.model.idle:
                self.model.remove(content)
        self.popped(self.table.stats().evictions - before)
        for content in matched:
            self.model.hit(content)
        self.table.commit(self.table.extend([sid], [len(prompt) - hits]), prompt[hits:])
        self.rows[sid] = blocks_of(self.table, sid)
        for k in range(hits, len(prompt)):
            content, block = tuple(prompt[: k + 1]), self.rows[sid][k]
            if block in self.content:  # published before: adopted
                if content in self.model.idle:
                    self.model.remove(content)
                self.model.hit(content)
            else:
                self.content[block] = content
                self.model.publish(content)
        return sid

    def release(self, sid: int) -> None:
        chain = self.rows.pop(sid)
        self.table.release([sid])
        held = {block for blocks in self.rows.values() for block in blocks}
        for block in reversed(chain):
            if block not in held:
                self.model.insert(self.content[block])

    def evict(self, count: int) -> None:
        self.popped(self.table.evict(count))

    def demote(self, prompt: list[int]) -> None:
        """Demote the prompt, of which all that is published is known."""
        found = [tuple(prompt[: k + 1]) for k in range(len(prompt))]
        known = [content for content in found if content in self.content.values()]
        expected = self.model.demote_end(known[-1]) if known else 0
        assert self.table.demote([prompt]) == expected

    def popped(self, count: int) -> None:
        gone = {self.model.pop() for _ in range(count)}
        self.content = {block: content for block, content in self.content.items() if content not in gone}

    def order(self, driver) -> list[tuple[int, ...]]:
        return [self.content[block] for block in driver.order(self.pool)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", POLICIES)
def test_random_tries_against_the_model(driver, policy, seed):
    """Prompts of few tokens share prefixes; what was evicted comes back, what is held is found again."""
    choose = random.Random(seed)
    num_blocks = choose.choice([1, 7, 12, 24])
    pair = Pair(num_blocks, policy(), POLICIES[policy](num_blocks))
    for _ in range(300):
        move = choose.choice(["admit", "admit", "admit", "release", "release", "evict", "demote"])
        if move == "admit":
            length = min(num_blocks, choose.randint(1, 7))
            sid = pair.admit([choose.choice([0, 0, 0, 1, 2]) for _ in range(length)])
            assert sid is not None or pair.rows, "an idle pool must admit"
        elif move == "release" and pair.rows:
            pair.release(choose.choice(list(pair.rows)))
        elif move == "evict":
            pair.evict(choose.randint(0, 2))
        elif move == "demote":
            pair.demote([choose.choice([0, 0, 0, 1, 2]) for _ in range(choose.randint(1, 4))])
        assert pair.order(driver) == pair.model.order()
        pair.table.check()  # no block before one that continues it; the policy's own figures
    assert pair.table.stats().evictions > 20, "the tries were too tame to show anything"


# -- what each policy is for --------------------------------------------------------------------------


def table_with(policy: EvictionPolicy, num_blocks: int = 20) -> SequenceTable:
    return SequenceTable(BlockPool(num_blocks, policy), 1)


def ask(table: SequenceTable, prompt: list[int], times: int = 1) -> int:
    """Send a prompt through so often; the tokens that were cached the last time."""
    for _ in range(times):
        admission = table.admit([[*prompt, 9]])
        cached = int(admission.cached[0])
        table.commit(table.extend(admission.ids, len(prompt) - cached), prompt[cached:])
        table.release(admission.ids)
    return cached


def scan(table: SequenceTable, first: int, prompts: int) -> None:
    """Prompts of three tokens that nobody asks for again."""
    for k in range(first, first + prompts):
        ask(table, [100 + k] * 3)


@pytest.mark.parametrize("policy", LEARNING)
def test_a_scan_does_not_push_out_what_is_asked_for_again(policy):
    """Under LRU it does. The prompt is used thrice; then come two pools full of others."""
    for kind, kept in ((LRU, 0), (policy, 3)):
        table = table_with(kind())
        ask(table, [1, 2, 3], times=4)
        scan(table, 0, 14)
        assert table.match([[1, 2, 3, 0]])[0] == kept
        table.check()


def test_what_was_popular_ages_under_lfu_da():
    """NeverHitFirst keeps it for good."""
    for policy, kept in ((LFUDA, 0), (NeverHitFirst, 3)):
        table = table_with(policy())
        ask(table, [1, 2, 3], times=4)
        scan(table, 0, 60)
        assert table.match([[1, 2, 3, 0]])[0] == kept


@pytest.mark.parametrize("policy", [ARC, S3FIFO])
def test_what_comes_back_soon_after_eviction_stays(policy):
    """Its ghost is known: the second time it is kept through a scan like that which evicted it."""
    table = table_with(policy())
    ask(table, list(range(50, 58)), times=3)  # without any of the other kind, ARC has no room for ghosts of new ones
    ask(table, [1, 2, 3])
    scan(table, 0, 5)
    assert ask(table, [1, 2, 3]) == 0, "the scan was too short"
    scan(table, 20, 8)
    assert table.match([[1, 2, 3, 0]])[0] == 3


def test_a_frequent_prefix_waits_for_its_rare_end():
    """What was used often is popped after what continues it, though that is new: nothing kept is unreachable."""
    for policy in POLICIES:
        table = table_with(policy())
        ask(table, [1, 2, 3], times=3)
        ask(table, [1, 2, 3, 4, 5])
        for left in (4, 3, 2, 1, 0):
            table.evict(1)
            assert table.match([[1, 2, 3, 4, 5, 0]])[0] == left
            table.check()


# -- extremes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pool_of_one_block(policy):
    table = SequenceTable(BlockPool(1, policy()), 1)
    for token in (1, 1, 2, 1, 2, 2):
        table.release([prefill(table, [token])])
        assert table.match([[token]])[0] == 0 and table.stats().cached == 1
        table.check()
    assert table.evict(5) == 1 and table.evict(5) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_where_all_is_held_nothing_gives_way(policy):
    table = table_with(policy(), num_blocks=12)
    held = [prefill(table, [k] * 3) for k in range(4)]
    assert table.admit([[7]]).status[0] == 1 and table.evict(12) == 0
    for sid in held[:2]:
        table.release([sid])
    assert table.evict(12) == 6
    assert table.match([[k, k, k, 0] for k in range(4)]).tolist() == [0, 0, 3, 3]
    table.check()


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_forgotten_leaves_no_trace(policy):
    """Blocks of a forgotten content get another, and go when their turn comes."""
    table = table_with(policy())
    for k in range(3):
        ask(table, [k, 1, 2], times=2)
    (held,) = table.admit([[0, 1, 2, 9]]).ids
    assert table.reset() == 9
    table.release([held])
    table.check()
    scan(table, 0, 12)
    assert table.evict(20) == 19 and table.match([[111] * 4])[0] == 0
    table.check()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", [*POLICIES, lambda: PriorityTTL([None, None]), lambda: NamespaceQuotas({None: 3})])
def test_blocks_beside_their_nodes_own_come_and_go(driver, policy, seed):
    """They are ordered like any other; what continues a node's own block still goes before it."""
    choose = random.Random(seed)
    table = table_with(policy(), num_blocks=30)
    sids = [prefill(table, prompt) for prompt in ([1, 2, 3, 4], [1, 2, 5], [6, 7])]
    chains = [blocks_of(table, sid) for sid in sids]
    table.release(choose.sample([*sids, *table.admit([[1, 2, 0], [6, 0]]).ids], 5))
    twins = [
        driver.twin(table.pool, block)
        for block in choose.sample(sorted({block for chain in chains for block in chain}), 5)
    ]
    driver.check_policy(table.pool)
    for gone in choose.sample(twins, 2):
        driver.give_back(table.pool, gone)
        twins.remove(gone)
    order = driver.order(table.pool)
    driver.check_policy(table.pool)
    assert sorted(order) == sorted({*twins, *(block for chain in chains for block in chain)})
    for chain in chains:
        places = [order.index(block) for block in chain]
        assert places == sorted(places, reverse=True)
    assert [driver.pop(table.pool) for _ in order] == order
    driver.check_policy(table.pool)
    table.check()


@pytest.mark.parametrize("policy", LEARNING)
def test_all_memory_is_taken_at_the_beginning(policy):
    table = table_with(policy())
    before = table.pool.nbytes
    assert before > BlockPool(20).nbytes
    scan(table, 0, 100)
    assert table.pool.nbytes == before


@pytest.mark.parametrize("policy", LEARNING)
def test_equal_tags_only_mislead(policy):
    """Where everything collides in the index all contents have the same ghost."""
    table = SequenceTable(BlockPool(20, policy()), 1, tag_bits=0)
    for _ in range(3):
        scan(table, 0, 12)
        table.check()
    assert ask(table, [1, 2], times=2) == 2
