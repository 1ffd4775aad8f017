"""The arrays of a Step. DESIGN 1 (slot, block table), 3 (Step, Lengths) and the interface notes."""

import numpy as np
import pytest
from drive import blocks_of, feed, prefill
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedcache.core import BlockPool, SequenceTable

DTYPES = {
    "ids": np.int64,
    "qo_indptr": np.int32,
    "slots": np.int64,
    "positions": np.int64,
    "token_seq": np.int32,
    "kv_lens": np.int32,
    "kv_starts": np.int32,
    "kv_pads": np.int32,
    "block_tables": np.int32,
    "kv_indptr": np.int32,
    "kv_indices": np.int32,
    "kv_last_page_len": np.int32,
    "copies": np.int32,
    "new_blocks": np.int32,
    "diff": np.int32,
}


@pytest.fixture
def ragged(make):
    """Three rows (7, 0 and 4 tokens, the last after 3 pads) that get 3, 0 and 6 tokens."""
    table = make(num_blocks=32)
    ids = [prefill(table, range(7)), int(table.admit([[]]).ids[0]), prefill(table, [9] * 4, pads=[3])]
    step = table.extend(ids, [3, 0, 6])
    return table, ids, step


@pytest.mark.parametrize("name", DTYPES)
def test_dtype_and_layout(ragged, name):
    array = getattr(ragged[2], name)
    assert array.dtype == DTYPES[name] and array.flags.c_contiguous and not array.flags.writeable
    if array.size:
        with pytest.raises(ValueError):
            array[...] = 0


def test_shapes(ragged):
    step = ragged[2]
    assert (step.num_sequences, step.num_tokens, step.block_size, step.closed) == (3, 9, 4, False)
    n, tokens = step.num_sequences, step.num_tokens
    assert step.ids.shape == step.kv_lens.shape == step.kv_starts.shape == step.kv_pads.shape == (n,)
    assert step.kv_last_page_len.shape == (n,) and step.qo_indptr.shape == step.kv_indptr.shape == (n + 1,)
    assert step.slots.shape == step.positions.shape == step.token_seq.shape == (tokens,)
    assert step.block_tables.ndim == 2 and len(step.block_tables) == n
    assert step.copies.shape[1:] == (2,) and step.diff.shape[1:] == (3,) and step.new_blocks.ndim == 1


def test_lengths_count_rows_and_positions_count_tokens(ragged):
    step = ragged[2]
    assert step.kv_lens.tolist() == [10, 0, 13] and step.kv_pads.tolist() == [0, 0, 3]
    assert step.kv_starts.tolist() == [0, 0, 3]
    assert step.positions.tolist() == [7, 8, 9, 4, 5, 6, 7, 8, 9]
    assert step.qo_indptr.tolist() == [0, 3, 3, 9] and step.token_seq.tolist() == [0] * 3 + [2] * 6


def test_slots_are_block_times_size_plus_offset(ragged):
    table, ids, step = ragged
    want = []
    for sid, start, end in zip(ids, (7, 0, 7), (10, 0, 13), strict=True):
        blocks = blocks_of(table, sid)
        want += [blocks[p // 4] * 4 + p % 4 for p in range(start, end)]
    assert step.slots.tolist() == want


def test_table_rows_end_in_minus_one(ragged):
    table, ids, step = ragged
    for row, sid, live in zip(step.block_tables, ids, (3, 0, 4), strict=True):
        assert row[:live].tolist() == blocks_of(table, sid)[:live] and (row[live:] == -1).all()


def test_blocks_that_are_only_allotted_are_no_part_of_the_live_prefix(make):
    table = make()
    [sid] = table.admit([range(16)]).ids
    step = table.extend([sid], 5)
    assert step.kv_indices.tolist() == blocks_of(table, sid)[:2]
    assert step.block_tables[0, :2].tolist() == blocks_of(table, sid)[:2]
    assert (step.block_tables[0, 2:] == -1).all()
    table.abandon(step)


def test_w08_the_last_page_is_full_not_empty_at_a_multiple(make):
    table = make(num_blocks=64)
    lengths = [0, 1, 3, 4, 5, 7, 8, 9]
    ids = table.admit([[1] * n for n in lengths], pads=None).ids
    step = table.extend(ids, lengths)
    assert step.kv_last_page_len.tolist() == [0, 1, 3, 4, 1, 3, 4, 1]
    assert np.diff(step.kv_indptr).tolist() == [0, 1, 1, 1, 2, 2, 2, 3]
    table.abandon(step)


def test_block_zero_is_never_named(ragged):
    step = ragged[2]
    assert (step.slots >= 4).all() and (step.kv_indices > 0).all() and (step.new_blocks > 0).all()


def test_new_blocks_were_nobodys(make):
    table = make(num_blocks=8)
    a = prefill(table, [1] * 6)
    b = int(table.fork([a])[0, 0])
    before = {*blocks_of(table, a), *blocks_of(table, b)}
    step = table.extend([a, b], [4, 1])
    new = step.new_blocks.tolist()
    assert len(set(new)) == len(new) and not set(new) & before
    assert set(new) | set(step.copies[:, 1].tolist()) == {*blocks_of(table, a), *blocks_of(table, b)} - before
    table.abandon(step)


def test_groups_zero_is_the_step(ragged):
    step = ragged[2]
    assert len(step.groups) == 1
    for name in ("block_tables", "slots", "kv_lens", "kv_indices", "diff", "copies", "new_blocks"):
        assert np.array_equal(getattr(step.groups[0], name), getattr(step, name))


def test_c12_an_array_does_not_change_while_its_step_is_open(make):
    table = make()
    ids = [prefill(table, [t] * 5) for t in range(3)]
    step = table.extend(ids[:2], [3, 4])
    copies = {name: getattr(step, name).copy() for name in DTYPES}
    table.admit([[7] * 9])
    table.release([ids[2]])
    table.release([ids[0]])
    table.fork([]), table.match([[1] * 5])
    for name, array in copies.items():
        assert np.array_equal(getattr(step, name), array), name
    table.commit(step, [1] * 7)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_csr_form_equals_the_tables(rows, block_size):
    table = SequenceTable(BlockPool(200), block_size)
    ids = table.admit([[1] * a for a, _ in rows]).ids
    feed(table, ids, [[1] * a for a, _ in rows])
    step = table.extend(ids, [b for _, b in rows])
    assert step.kv_indptr[0] == 0 and len(step.kv_indices) == step.kv_indptr[-1]
    for i in range(len(rows)):
        pages = step.kv_indices[step.kv_indptr[i] : step.kv_indptr[i + 1]]
        row = step.block_tables[i]
        assert pages.tolist() == row[row != -1].tolist()
        if len(pages):
            assert 0 < step.kv_last_page_len[i] <= block_size
            assert (len(pages) - 1) * block_size + step.kv_last_page_len[i] == step.kv_lens[i]
        else:
            assert step.kv_lens[i] == 0
    table.abandon(step)
