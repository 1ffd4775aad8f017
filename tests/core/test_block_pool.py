"""BlockPool alone: who may take, share and give back a block. DESIGN 4.3, 4.8, 4.10 and section 5."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedcache.core import BlockPool, SequenceTable
from pagedcache.errors import InvalidBlock, OutOfBlocks


def state(pool):
    counts = [pool.refcount(b) for b in range(1, pool.num_blocks + 1)]
    return pool.num_blocks, pool.num_free, pool.num_used, pool.num_cached, counts


def test_ids_are_one_to_num_blocks_without_the_zero_block():
    pool = BlockPool(7)
    ids = pool.allocate(7)
    assert ids.dtype == np.int32 and sorted(ids.tolist()) == [1, 2, 3, 4, 5, 6, 7]


def test_allocated_blocks_have_one_reference():
    pool = BlockPool(4)
    assert [pool.refcount(b) for b in pool.allocate(3)] == [1, 1, 1]


def test_counts_say_what_is_usable_now():
    pool = BlockPool(6)
    ids = pool.allocate(4)
    assert (pool.num_blocks, pool.num_free, pool.num_used, pool.num_cached) == (6, 2, 4, 0)
    assert pool.decref(ids[:3]) == 3
    assert (pool.num_free, pool.num_used) == (5, 1)


def test_a_block_becomes_usable_with_its_last_reference():
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.incref([block])
    assert pool.decref([block]) == 0 and pool.refcount(block) == 1
    assert pool.decref([block]) == 1 and pool.refcount(block) == 0


def test_one_call_may_drop_both_references():
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.incref([block, block])
    assert pool.decref([block, block, block]) == 1


def test_nothing_may_be_asked_for():
    pool = BlockPool(2)
    assert pool.allocate(0).shape == (0,)
    pool.incref([])
    assert pool.decref([]) == 0


def test_out_of_blocks_is_a_memory_error_that_names_both_numbers():
    pool = BlockPool(5)
    pool.allocate(2)
    before = state(pool)
    with pytest.raises(OutOfBlocks, match=r"(?s)4.*3|3.*4") as caught:
        pool.allocate(4)
    assert isinstance(caught.value, MemoryError) and state(pool) == before


def test_m04_second_free_raises_and_changes_nothing():
    pool = BlockPool(4)
    block = int(pool.allocate(1)[0])
    pool.decref([block])
    before = state(pool)
    with pytest.raises(InvalidBlock, match=str(block)):
        pool.decref([block])
    assert state(pool) == before
    assert len(set(pool.allocate(4).tolist())) == 4


@pytest.mark.parametrize("bad", [-1, 0, 5, 2**31 - 1, 2**31, -(2**31), 2**63 - 1])
@pytest.mark.parametrize("verb", ["incref", "decref"])
def test_m04_ids_out_of_range_raise_and_change_nothing(verb, bad):
    pool = BlockPool(4)
    held = pool.allocate(2).tolist()
    before = state(pool)
    with pytest.raises(InvalidBlock, match=str(bad)):
        getattr(pool, verb)([*held, bad])
    assert state(pool) == before
    pool.check()


@pytest.mark.parametrize("bad", [-1, 0, 5, 2**31, 2**64])
def test_refcount_of_no_block_raises(bad):
    with pytest.raises((InvalidBlock, OverflowError)):
        BlockPool(4).refcount(bad)


@pytest.mark.parametrize("verb", ["incref", "decref"])
def test_m04_a_free_block_among_good_ones_raises_and_changes_nothing(verb):
    pool = BlockPool(4)
    a, b = pool.allocate(2).tolist()
    pool.decref([b])
    before = state(pool)
    with pytest.raises(InvalidBlock, match=str(b)):
        getattr(pool, verb)([a, b])
    assert state(pool) == before


def test_m04_more_frees_than_references_in_one_call():
    pool = BlockPool(4)
    a, b = pool.allocate(2).tolist()
    pool.incref([a])
    before = state(pool)
    with pytest.raises(InvalidBlock):
        pool.decref([b, a, a, a])
    assert state(pool) == before


def test_m04_callers_cannot_drop_what_sequences_hold():
    pool = BlockPool(8)
    table = SequenceTable(pool, 4)
    blocks = table.block_table(table.admit([[1] * 9]).ids[0])
    mine = pool.allocate(1)
    with pytest.raises(InvalidBlock):
        pool.decref([*mine, blocks[0]])
    table.check()


def test_callers_hold_no_block_of_a_sequence():
    """Held from outside, a block could outlive the blocks before it, or be written while shared (contracts 1, 10)."""
    pool = BlockPool(8)
    table = SequenceTable(pool, 4)
    [sid] = table.admit([list(range(9))]).ids
    table.commit(table.extend([sid], 9), range(9))
    mine = pool.allocate(1)
    for blocks in (table.block_table(sid), [*mine, table.block_table(sid)[1]]):
        with pytest.raises(InvalidBlock, match="sequence"):
            pool.incref(blocks)
    assert pool.refcounts().max() == 1
    table.check()


@pytest.mark.parametrize("bad", [-1, -(2**40), 2**31, 2**70])
def test_allocate_refuses_impossible_numbers(bad):
    pool = BlockPool(4)
    with pytest.raises((ValueError, OutOfBlocks, OverflowError)):
        pool.allocate(bad)
    assert state(pool)[1] == 4


@pytest.mark.parametrize("bad", [0, -1, 2**31, 2**40, 2**64])
def test_w37_pool_sizes_out_of_range_are_refused_when_made(bad):
    with pytest.raises((ValueError, OverflowError)):
        BlockPool(bad)


@pytest.mark.parametrize("bad", [None, "4", 1.5, [4]])
def test_pool_size_of_another_type_is_refused(bad):
    with pytest.raises((TypeError, ValueError)):
        BlockPool(bad)


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        lambda x: x.astype(np.int64),
        lambda x: x.astype(np.uint32),
        lambda x: x.astype(np.intp),
        lambda x: x.astype(np.int16),
        lambda x: x.astype(">i4"),
        lambda x: np.repeat(x, 2)[::2],
        lambda x: x[::-1],
    ],
)
def test_i07_ids_of_any_integer_array_work(convert):
    pool = BlockPool(8)
    ids = pool.allocate(5)
    assert pool.decref(convert(ids)) == 5


def test_i04_read_only_ids_work():
    pool = BlockPool(4)
    ids = np.frombuffer(pool.allocate(3).tobytes(), np.int32)
    assert not ids.flags.writeable and pool.decref(ids) == 3


@pytest.mark.parametrize("bad", [[1.0], [1.5], [True], ["1"], [None], np.ones((1, 1), np.int32), None])
def test_i07_ids_that_are_no_integers_are_refused(bad):
    pool = BlockPool(4)
    pool.allocate(4)
    before = state(pool)
    with pytest.raises((TypeError, ValueError)):
        pool.decref(bad)
    assert state(pool) == before


@given(st.permutations(range(12)), st.lists(st.integers(1, 5)))
@settings(max_examples=60, deadline=None)
def test_every_free_order_is_legal(order, sizes):
    pool = BlockPool(12)
    ids = pool.allocate(12)
    rest = [int(ids[i]) for i in order]
    for size in sizes:
        pool.decref(rest[:size])
        rest = rest[size:]
        pool.check()
    pool.decref(rest)
    pool.check()
    assert sorted(pool.allocate(12).tolist()) == list(range(1, 13))


@given(st.lists(st.tuples(st.sampled_from(["allocate", "incref", "decref"]), st.integers(0, 7)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_pool_agrees_with_a_dict(calls):
    pool, counts = BlockPool(9), {}
    for verb, n in calls:
        held = sorted(counts)[:n]
        if verb == "allocate":
            if n > 9 - len(counts):
                with pytest.raises(OutOfBlocks):
                    pool.allocate(n)
            else:
                got = pool.allocate(n).tolist()
                assert not set(got) & set(counts)
                counts.update(dict.fromkeys(got, 1))
        elif verb == "incref":
            pool.incref(held)
            counts.update({b: counts[b] + 1 for b in held})
        else:
            freed = pool.decref(held)
            assert freed == sum(counts[b] == 1 for b in held)
            counts = {b: c - (b in held) for b, c in counts.items() if c > (b in held)}
        pool.check()
        assert state(pool)[1:3] == (9 - len(counts), len(counts))
        assert state(pool)[4] == [counts.get(b, 0) for b in range(1, 10)]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_c08_copies_are_refused_with_a_reason(duplicate):
    with pytest.raises(TypeError, match="BlockPool"):
        duplicate(BlockPool(2))


def test_a_stream_of_single_blocks_can_run_on():
    pool = BlockPool(16)
    block, ids = 0, []
    for _ in range(8):
        (block,) = pool.allocate(1, after=block).tolist()
        ids.append(block)
    assert ids == list(range(ids[0], ids[0] + 8))
    for wrong in (-1, 17):
        with pytest.raises(InvalidBlock, match=str(wrong)):
            pool.allocate(1, after=wrong)
    assert pool.num_free == 8
    pool.check()
