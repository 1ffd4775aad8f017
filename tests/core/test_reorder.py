"""Beam steps: sequence i goes on from where ids[parents[i]] is. DESIGN 3 (fork, reorder; Copies) and 4.1."""

import numpy as np
import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot
from hypothesis import given
from hypothesis import strategies as st

from pagedcache.core import BlockPool, SequenceTable
from pagedcache.errors import InvalidSequence, StepOpen, SwappedOut


def beams(table, lengths, **options):
    """One row of each length, with tokens of its own."""
    return [prefill(table, [10 * k + i for i in range(n)], **options) for k, n in enumerate(lengths)]


def refcounts(table, *sids):
    """By block of any of the rows."""
    return {block: table.pool.refcount(block) for sid in sids for block in blocks_of(table, sid)}


def test_the_identity_changes_nothing(make):
    table = make()
    ids = [*beams(table, [6, 3]), int(table.admit([[9]], reserve=9).ids[0])]
    before, counts = snapshot(table, *ids), refcounts(table, *ids)
    assert table.reorder(ids, [0, 1, 2]) is None
    assert snapshot(table, *ids) == before and refcounts(table, *ids) == counts


def test_handles_stay_and_rows_take_the_parents_blocks_and_positions(make):
    table = make()
    ids = beams(table, [6, 3, 9])
    blocks, positions = [blocks_of(table, s) for s in ids], [position_of(table, s) for s in ids]
    table.reorder(ids, [2, 0, 1])
    assert [blocks_of(table, s) for s in ids] == [blocks[2], blocks[0], blocks[1]]
    assert [position_of(table, s) for s in ids] == [positions[2], positions[0], positions[1]]


def test_a_permutation_keeps_every_reference_count(make):
    table = make()
    ids = beams(table, [6, 3, 9])
    before = snapshot(table)[0]
    counts = refcounts(table, *ids)
    table.reorder(ids, [1, 2, 0])
    assert refcounts(table, *ids) == counts and snapshot(table)[0] == before


def test_a_parent_named_thrice_is_shared_and_the_others_go(make):
    table = make()
    ids = beams(table, [6, 6, 6])
    kept = blocks_of(table, ids[1])
    table.reorder(ids, [1, 1, 1])
    assert [blocks_of(table, s) for s in ids] == [kept] * 3
    assert refcounts(table, *ids) == dict.fromkeys(kept, 3)
    assert table.stats().used == 2 and table.stats().cached == 2  # the first blocks of 0 and 2 were published


def test_only_tables_and_references_change(make):
    table = make()
    ids = beams(table, [6, 6])
    stats = table.stats()
    table.reorder(ids, [1, 1])
    after = table.stats()
    assert (after.copies, after.evictions, after.published) == (stats.copies, stats.evictions, stats.published)


def test_rows_of_nothing_take_part(make):
    table = make()
    empty, full = int(table.admit([[]]).ids[0]), prefill(table, range(6))
    kept = blocks_of(table, full)
    table.reorder([empty, full], [1, 0])
    assert blocks_of(table, empty) == kept and blocks_of(table, full) == []
    assert (position_of(table, empty), position_of(table, full)) == (6, 0)
    feed(table, [empty, full], [[7], [8]])


def test_no_sequences(make):
    make().reorder([], [])


def test_a_row_that_goes_on_from_another_gives_up_its_allotment_and_takes_none(make):
    table = make()
    a = int(table.admit([[1] * 5], reserve=7).ids[0])
    feed(table, [a], [[1] * 5])
    b = int(table.admit([[2] * 5], reserve=7).ids[0])
    feed(table, [b], [[2] * 5])
    first = blocks_of(table, b)
    table.reorder([a, b], [1, 1])
    assert blocks_of(table, a) == first[:2], "only what holds tokens is shared"
    assert blocks_of(table, b) == first, "the parent keeps its own allotment"
    assert table.stats().used == 3


def test_the_first_writer_of_a_shared_tail_gets_a_copy(make):
    table = make()
    ids = beams(table, [6, 6])
    tail = blocks_of(table, ids[0])[1]
    table.reorder(ids, [0, 0])
    step = table.extend(ids, 1)
    [[source, destination]] = step.copies.tolist()
    assert source == tail and {blocks_of(table, s)[1] for s in ids} == {tail, destination}
    assert sorted(step.slots.tolist()) == sorted([tail * 4 + 2, destination * 4 + 2])
    table.commit(step, [50, 51])


def test_after_a_swap_of_beams_each_goes_on_in_the_others_block_without_a_copy(make):
    table = make()
    ids = beams(table, [6, 7])
    tails = [blocks_of(table, s)[1] for s in ids]
    table.reorder(ids, [1, 0])
    step = table.extend(ids, 1)
    assert len(step.copies) == 0 and step.positions.tolist() == [7, 6]
    assert step.slots.tolist() == [tails[1] * 4 + 3, tails[0] * 4 + 2]
    table.commit(step, [1, 2])


def test_what_a_beam_publishes_is_its_parents_prefix_and_its_own_tokens(make):
    table = make()
    ids = beams(table, [6, 6])
    table.reorder(ids, [1, 1])
    feed(table, ids, [[90, 91], [92, 93]])
    prefix = [10 + i for i in range(6)]
    assert table.match([[*prefix, 90, 91, 0], [*prefix, 92, 93, 0], [*range(6), 90, 91, 0]]).tolist() == [8, 8, 4]


def test_pads_go_along(make):
    table = make()
    a, b = prefill(table, [1] * 3, pads=[5]), prefill(table, [2] * 6)
    table.reorder([a, b], [1, 0])
    assert [table.length(s) for s in (a, b)] == [6, 3] and [position_of(table, s) for s in (a, b)] == [6, 8]
    step = table.extend([a, b], 1)
    assert step.kv_pads.tolist() == step.kv_starts.tolist() == [0, 5] and step.positions.tolist() == [6, 3]
    table.commit(step, [7, 7])
    assert feed(table, [a, b], [[2], [2] * 8]) == 1, "a's row is full and publishes; the padded one does not"


def test_a_row_that_publishes_no_more_passes_that_on(make):
    table = make()
    a, b = int(table.admit([[1] * 6]).ids[0]), prefill(table, [2] * 6)
    feed(table, [a], [[1] * 6], known=False)
    table.reorder([a, b], [1, 0])
    assert feed(table, [a], [[2, 2]]) == 1 and feed(table, [b], [[1, 1]]) == 0


def test_steps_show_the_new_blocks_in_the_same_places(make):
    """A row keeps its place in block_tables, but not what stands there."""
    table = make()
    ids = beams(table, [6, 6, 6])
    table.commit(table.extend(ids, 1), [1, 2, 3])
    table.reorder(ids, [1, 2, 0])
    step = table.extend(ids, 1)
    assert [row[:2] for row in step.block_tables.tolist()] == [blocks_of(table, s) for s in ids]
    table.abandon(step)


def test_the_diff_tells_a_device_of_every_new_entry(make):
    table = make()
    ids = beams(table, [6, 6])
    table.commit(table.extend(ids, 1), [1, 2])
    table.reorder(ids, [1, 0])
    step = table.extend(ids, 0)
    told = {(row, logical): block for row, logical, block in step.diff.tolist()}
    for sid in ids:
        assert [told[sid & 0xFFFFFFFF, j] for j in range(2)] == blocks_of(table, sid)
    table.abandon(step)


def test_an_open_step_is_refused_for_any_row_of_the_call(make):
    table = make(steps_in_flight=2)
    ids = beams(table, [6, 3])
    step = table.extend(ids[:1], 1)
    before = snapshot(table, *ids)
    with pytest.raises(StepOpen, match=str(ids[0])):
        table.reorder([ids[1], ids[0]], [1, 0])
    assert snapshot(table, *ids) == before
    table.reorder(ids[1:], [0])
    table.abandon(step)


def test_rows_of_keys_pass_their_keys_on(make):
    """What a beam publishes after it took over a row of another salt is found with that salt only."""
    from pagedcache import salt

    table = make()
    keyed = [[salt("theirs")]]
    a, b = prefill(table, [1] * 6, keys=keyed), prefill(table, [1] * 6)
    table.reorder([a, b], [1, 0])
    feed(table, [a, b], [[2, 2], [3, 3]])
    assert table.match([[1] * 6 + [2, 2, 0], [1] * 6 + [3, 3, 0]]).tolist() == [8, 6]
    assert table.match([[1] * 6 + [2, 2, 0], [1] * 6 + [3, 3, 0]], keys=keyed * 2).tolist() == [6, 8]


@pytest.mark.parametrize("bad", [-1, 2, 2**31 - 1, 2**31, -(2**63), 2**64])
def test_parents_out_of_range_are_named(make, bad):
    table = make()
    ids = beams(table, [6, 3])
    before = snapshot(table, *ids)
    with pytest.raises((ValueError, OverflowError), match=str(bad)):
        table.reorder(ids, [0, bad])
    assert snapshot(table, *ids) == before


@pytest.mark.parametrize("parents", [[], [0], [0, 1, 1], 0, [[0, 1]], np.zeros((2, 1), np.int32), None, [0.0, 1.0]])
def test_one_parent_for_each_sequence(make, parents):
    table = make()
    ids = beams(table, [6, 3])
    before = snapshot(table, *ids)
    with pytest.raises((ValueError, TypeError)):
        table.reorder(ids, parents)
    assert snapshot(table, *ids) == before


def test_sequences_are_live_and_named_once(make):
    table = make()
    a, b, c = beams(table, [6, 3, 3])
    table.release([c])
    before = snapshot(table, a, b)
    for ids, error in (([a, a], ValueError), ([a, c], InvalidSequence), ([a, -1], InvalidSequence)):
        with pytest.raises(error):
            table.reorder(ids, [1, 0])
    assert snapshot(table, a, b) == before
    table.swap_out([b])
    with pytest.raises(SwappedOut):
        table.reorder([a, b], [1, 1])
    table.swap_in([b])


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    rounds=st.lists(st.integers(0, 2**16), min_size=1, max_size=5),
)
def test_many_beam_steps_agree_with_lists_of_tokens(lengths, rounds):
    """The prefix cache tells in the end what each row held."""
    table = SequenceTable(BlockPool(200), 2)
    ids = beams(table, lengths)
    tokens = [[10 * k + i for i in range(n)] for k, n in enumerate(lengths)]
    for turn, seed in enumerate(rounds):
        parents = np.random.default_rng(seed).integers(0, len(ids), len(ids))
        table.reorder(ids, parents)
        table.check()
        tokens = [[*tokens[p], 100 + 10 * turn + i] for i, p in enumerate(parents)]
        feed(table, ids, [[row[-1]] for row in tokens])
        assert [position_of(table, s) for s in ids] == [len(row) for row in tokens]
    table.check()
    assert table.match([[*row, 9] for row in tokens]).tolist() == [len(row) // 2 * 2 for row in tokens]
    table.release(ids)
    assert table.stats().used == 0
