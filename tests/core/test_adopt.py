"""hold, let_go and adopt: cached blocks whose bytes come from elsewhere."""

import gc

import numpy as np
import pytest
from drive import blocks_of, prefill, snapshot

from pagedcache import content, salt
from pagedcache.core import BlockPool, SequenceTable
from pagedcache.errors import InvalidBlock

PROMPT = list(range(100, 117))  # four full blocks of four, and a token


@pytest.fixture
def cached(make):
    """A table with the four full blocks of PROMPT idle, and their ids."""
    table = make(num_blocks=8, events="digests")
    sid = prefill(table, PROMPT)
    blocks = blocks_of(table, sid)[:4]
    table.release([sid])
    return table, blocks


# ---- what leads to them


def test_what_is_held_stays(cached):
    table, _ = cached
    hold, blocks = table.hold(PROMPT[:13])
    assert blocks == 3 and table.evict(8) == 1 and table.match([PROMPT])[0] == 12
    assert table.stats().used == 3
    assert table.let_go(hold) == 3 and table.evict(8) == 3


def test_the_last_block_of_a_prompt_is_held_too(cached):
    table, _ = cached
    hold, blocks = table.hold(PROMPT[:16])
    assert blocks == 4 and table.evict(8) == 0
    table.let_go(hold)


def test_nothing_may_be_there(cached):
    table, _ = cached
    for prompt in ([], [7], [7] * 400):
        hold, blocks = table.hold(prompt)
        assert blocks == 0 == table.let_go(hold)


def test_a_block_may_be_held_often_and_by_sequences_too(cached):
    table, blocks = cached
    (first, _), (second, _) = table.hold(PROMPT), table.hold(PROMPT)
    [sid] = table.admit([PROMPT]).ids
    assert table.pool.refcounts()[blocks].tolist() == [3, 3, 3, 3]
    assert table.let_go(first) == 0 and table.release([sid]) == 1
    assert table.let_go(second) == 4


def test_a_hold_ends_once(cached):
    table, _ = cached
    hold, _ = table.hold(PROMPT)
    table.let_go(hold)
    for wrong in (hold, hold + 1, 0, -1, "x"):
        with pytest.raises(InvalidBlock, match="has ended"):
            table.let_go(wrong)


def test_holds_are_of_their_namespace(cached):
    table, _ = cached
    assert table.hold(PROMPT, namespace="mine")[1] == 0 == table.hold(PROMPT, keys=[salt("x", 5)])[1] - 1


def test_forgotten_blocks_are_free_once_let_go(cached):
    table, _ = cached
    hold, _ = table.hold(PROMPT[:8])
    assert table.reset() == 4 and table.stats().free == 6
    assert table.let_go(hold) == 2 and table.match([PROMPT])[0] == 0


def test_a_held_block_is_copied_by_whoever_writes(cached):
    table, blocks = cached
    hold, _ = table.hold(PROMPT)
    admitted = table.admit([[*PROMPT[:14], 7]])
    step = table.extend(admitted.ids, [1])
    assert step.copies[:, 0].tolist() == blocks[3:4]
    table.commit(step, [7])
    table.let_go(hold)


def test_a_table_that_goes_gives_back_what_it_held():
    pool = BlockPool(8)
    table = SequenceTable(pool, 4)
    prefill(table, PROMPT)
    assert table.hold(PROMPT)[1] == 4
    del table
    gc.collect()
    assert pool.num_free == 8
    pool.check()


# ---- on the way in


def test_adopted_blocks_are_found(make):
    table = make(events="digests")
    blocks = table.pool.allocate(4)
    assert table.match([PROMPT])[0] == 0
    assert table.adopt(PROMPT, blocks) == 4
    assert (table.stats().used, table.stats().cached) == (0, 4)
    admission = table.admit([PROMPT])
    assert admission.cached[0] == 16 and blocks_of(table, admission.ids[0])[:4] == blocks.tolist()
    assert table.events()["block"].tolist() == blocks.tolist()


def test_adopted_behind_what_is_cached(cached):
    table, blocks = cached
    table.evict(2)
    more = table.pool.allocate(2)
    assert table.adopt(PROMPT, more, first=2) == 2
    assert blocks_of(table, table.admit([PROMPT]).ids[0])[:4] == blocks[:2] + more.tolist()


def test_nothing_is_published_behind_a_gap(cached):
    table, _ = cached
    table.evict(4)
    assert table.adopt(PROMPT, table.pool.allocate(2), first=2) == 0
    assert table.stats().free == 8 and table.stats().cached == 0


def test_what_others_published_meanwhile_stays(cached):
    table, blocks = cached
    table.evict(1)
    assert table.adopt(PROMPT, table.pool.allocate(4)) == 1
    assert blocks_of(table, table.admit([PROMPT]).ids[0])[:3] == blocks[:3]
    assert table.stats().free == 3


def test_lru_takes_the_last_first(make):
    table = make(num_blocks=4)
    table.adopt(PROMPT, table.pool.allocate(4))
    assert table.evict(1) == 1 and table.match([PROMPT[:16]])[0] == 12


def test_keys_and_namespaces_tell_adopted_blocks_apart(make):
    table = make()
    about = {"namespace": "mine", "keys": [content("cat", 5, 7)]}
    assert table.adopt(PROMPT, table.pool.allocate(3), **about) == 3
    assert table.match([PROMPT], namespace="mine", keys=[about["keys"]])[0] == 12
    assert table.match([PROMPT], namespace="mine")[0] == 4
    assert table.match([PROMPT])[0] == 0


def test_asynchronous_work_fences_what_is_adopted(make):
    table = make(num_blocks=8)
    table.adopt(PROMPT, table.pool.allocate(2))
    table.cover(1)
    assert table.adopt(PROMPT, table.pool.allocate(2), first=2) == 2
    assert table.stats().free == 4 and table.match([PROMPT])[0] == 16
    assert table.evict(8) == 0
    assert table.retire(1) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first": 5}, "first is 5"),
        ({"first": 3}, "blocks 3 to 4 of a prompt of 17 tokens; it has 4"),
        ({"priority": 1}, "priority"),
        ({"keys": [salt("x", 99)]}, "99"),
        ({"prompt": [-1] * 8}, "-1"),
    ],
)
def test_wrong_arguments_change_nothing(make, change, message):
    table = make()
    blocks = table.pool.allocate(2)
    before = snapshot(table)
    with pytest.raises(ValueError, match=message):
        table.adopt(**({"prompt": PROMPT, "blocks": blocks} | change))
    assert snapshot(table) == before
    table.pool.decref(blocks)


def test_only_blocks_of_the_caller_alone_are_adopted(make):
    table = make()
    theirs = blocks_of(table, prefill(table, PROMPT))
    mine, twice = table.pool.allocate(2).tolist()
    table.pool.incref([twice])
    for wrong in (theirs[0], theirs[4], twice, 0, -1, 17):
        with pytest.raises(InvalidBlock, match=f"block {wrong} is "):
            table.adopt(range(12), [mine, wrong])
    with pytest.raises(InvalidBlock, match=f"block {mine} is "):
        table.adopt(range(12), [mine, mine])
    assert table.match([range(12)])[0] == 0
    table.pool.decref([mine, twice, twice])


# ---- with several layer groups


@pytest.fixture
def hybrid(make):
    """A table with a window of eight tokens beside full attention."""
    return make(num_blocks=32, side_groups=[(8, 0, False)], max_step_tokens=17)


def test_companions_come_along(hybrid):
    blocks = hybrid.pool.allocate(6)
    table = np.array([[*pair] for pair in zip(blocks[:4], [0, 0, *blocks[4:]], strict=True)], np.int32)
    assert hybrid.adopt(PROMPT, table) == 4
    assert hybrid.match([PROMPT])[0] == 16 and hybrid.match([PROMPT[:13]])[0] == 0
    [sid] = hybrid.admit([PROMPT]).ids
    assert hybrid.block_table(sid, 1)[2:4].tolist() == blocks[4:].tolist()


def test_shapes_for_several_groups(hybrid, make):
    blocks = hybrid.pool.allocate(2)
    for table, wrong in ((hybrid, blocks), (make(), blocks[None]), (hybrid, blocks.reshape(2, 1))):
        with pytest.raises(ValueError, match=r"blocks has shape"):
            table.adopt(PROMPT, wrong)
    with pytest.raises(InvalidBlock, match="block 0 is out of range"):
        hybrid.adopt(PROMPT, np.array([[0, blocks[0]]], np.int32))
    hybrid.pool.decref(blocks)


def test_companions_are_held_with_their_prefix(hybrid):
    sid = prefill(hybrid, PROMPT)
    hybrid.release([sid])
    before = hybrid.match([PROMPT], by_group=True).tolist()
    hold, blocks = hybrid.hold(PROMPT)
    hybrid.evict(32)
    assert blocks == 4 and hybrid.match([PROMPT], by_group=True).tolist() == before == [[16, 16]]
    hybrid.let_go(hold)
    assert hybrid.evict(32) > 4
