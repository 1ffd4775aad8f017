"""The arrays of a Step. DESIGN 1 (slot, block table), 3 (Step, Lengths) and the interface notes."""

import gc

import numpy as np
import pytest
from drive import blocks_of, feed, prefill
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedcache.core import BlockPool, SequenceTable, Step

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


def test_s09_the_diff_is_empty_where_no_row_crosses_a_boundary(make):
    table = make(num_blocks=800, max_sequences=256)
    ids = table.admit([[t] * 5 for t in range(256)]).ids
    feed(table, ids, [[t] * 5 for t in range(256)])
    feed(table, ids, [[1]] * 256)
    step = table.extend(ids, 1)
    assert step.diff.shape == (0, 3) and len(step.new_blocks) == 0
    table.commit(step, [2] * 256)
    feed(table, ids, [[1]] * 256)
    step = table.extend(ids, 1)
    assert len(step.diff) == 256  # one entry each where all cross
    table.commit(step, [2] * 256)


def test_diff_names_row_logical_block_and_id(make):
    table = make()
    a, b = prefill(table, [1] * 4), prefill(table, [2] * 2)
    step = table.extend([b, a], 1)
    new = blocks_of(table, a)[1]
    assert [a & 0xFFFFFFFF, 1, new] in step.diff.tolist()
    table.commit(step, [1, 1])


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("easfr"), st.integers(0, 6)), max_size=40))
@settings(max_examples=50, deadline=None)
def test_replaying_every_diff_reproduces_the_tables(calls):
    """Commits, abandoned steps, forks, truncates and reused rows in between: the device's copy is never stale."""
    table, device, live = SequenceTable(BlockPool(60), 2, max_sequences=6), np.full((6, 64), -7), []
    for which, verb, n in calls:
        if verb == "a" and len(live) < 6:
            live += [s for s in table.admit([[1] * n]).ids.tolist() if s >= 0]
        elif live and verb == "f" and len(live) < 6:
            live += table.fork([live[which % len(live)]])[0].tolist()
        elif live and verb == "r":
            table.release([live.pop(which % len(live))])
        elif live and verb in "es":
            ids = live[: which + 1]
            if not table.can_extend(ids, n):
                continue
            step = table.extend(ids, n)
            for row, logical, block in step.diff.tolist():
                device[row, logical] = block
            for i, sid in enumerate(ids):
                pages = -(-int(step.kv_lens[i]) // 2)
                assert device[sid & 0xFFFFFFFF, :pages].tolist() == step.block_tables[i, :pages].tolist()
            if verb == "s":
                table.abandon(step)
            else:
                table.commit(step, [1] * step.num_tokens)
    table.check()


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


def test_an_array_outlives_its_step_without_harm():
    """Valid until the step is closed: what it says later is left open, but it is never freed memory."""
    table = SequenceTable(BlockPool(2000), 4, max_sequences=300)
    ids = table.admit([[1]] * 2).ids
    step = table.extend(ids, 1)
    kept = [getattr(step, name) for name in DTYPES]
    table.commit(step, [1, 1])
    del step
    for _ in range(3):
        ids = table.admit([[1]] * 80).ids
        table.commit(table.extend(ids, 20), [1] * 1600)
    del table
    gc.collect()
    assert all(int(array.sum()) is not None for array in kept)


# ---- Step.from_arrays


def built(**changes):
    tables, lens = changes.pop("block_tables", [[3, 5, -1], [2, -1, -1]]), changes.pop("kv_lens", [6, 3])
    return Step.from_arrays(tables, lens, changes.pop("qo_indptr", [0, 2, 3]), **{"block_size": 4, **changes})


def test_from_arrays_derives_the_rest():
    step = built()
    assert (step.num_sequences, step.num_tokens, step.block_size, step.closed) == (2, 3, 4, False)
    assert step.slots.tolist() == [20, 21, 10] and step.positions.tolist() == [4, 5, 2]
    assert step.token_seq.tolist() == [0, 0, 1] and step.kv_starts.tolist() == step.kv_pads.tolist() == [0, 0]
    assert (step.kv_indptr.tolist(), step.kv_indices.tolist()) == ([0, 2, 3], [3, 5, 2])
    assert step.kv_last_page_len.tolist() == [2, 3]
    for name, dtype in DTYPES.items():
        if name not in ("ids", "copies", "diff", "new_blocks"):
            assert getattr(step, name).dtype == dtype, name


def test_from_arrays_takes_what_is_given():
    step = built(positions=[40, 41, 9], slots=[4, 5, 6], kv_starts=[1, 2], kv_pads=[1, 0])
    assert step.positions.tolist() == [40, 41, 9] and step.slots.tolist() == [4, 5, 6]
    assert step.kv_starts.tolist() == [1, 2] and step.kv_pads.tolist() == [1, 0]


def test_from_arrays_of_a_row_without_visible_keys():
    """Contract 5: starts and pads may lie beyond the length, then nothing is visible."""
    step = built(kv_starts=[7, 0], kv_pads=[7, 0])
    assert step.kv_starts.tolist() == [7, 0] and step.kv_lens.tolist() == [6, 3]


def test_from_arrays_positions_leave_the_pad_out():
    assert built(kv_pads=[1, 0]).positions.tolist() == [3, 4, 2]


def test_from_arrays_of_more_queries_than_positions():
    """The first queries see nothing (contract 5) and have no slot: -1 there, never block 0 or the last block."""
    step = built(kv_lens=[2, 0], qo_indptr=[0, 4, 5])
    assert step.slots.tolist() == [-1, -1, 12, 13, -1] and step.kv_last_page_len.tolist() == [2, 0]


def test_from_arrays_agrees_with_the_table(ragged):
    step = ragged[2]
    again = Step.from_arrays(
        step.block_tables.copy(),
        step.kv_lens,
        step.qo_indptr,
        block_size=4,
        kv_starts=step.kv_starts,
        kv_pads=step.kv_pads,
    )
    for name in DTYPES:
        if name not in ("ids", "copies", "diff", "new_blocks"):
            assert np.array_equal(getattr(again, name), getattr(step, name)), name


def test_from_arrays_of_an_empty_batch():
    step = built(block_tables=np.empty((0, 0), np.int32), kv_lens=[], qo_indptr=[0])
    assert (step.num_sequences, step.num_tokens) == (0, 0)


def test_from_arrays_does_not_keep_the_callers_memory():
    tables = np.array([[3, 5, -1], [2, -1, -1]], np.int32)
    step = built(block_tables=tables)
    tables[:] = 1
    assert step.block_tables[0, 0] == 3 and step.kv_indices[0] == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": 0},
        {"block_size": -4},
        {"block_size": 1.5},
        {"block_size": 2**31},
        {"kv_lens": [6]},
        {"kv_lens": [-1, 3]},
        {"kv_lens": [13, 3]},  # beyond the table's width
        {"kv_lens": [6, 5]},  # its second block is -1
        {"kv_lens": [6.0, 3.0]},
        {"qo_indptr": [0, 2]},
        {"qo_indptr": [1, 2, 3]},
        {"qo_indptr": [0, 3, 2]},
        {"qo_indptr": [0, -1, 3]},
        {"block_tables": [3, 5]},
        {"block_tables": [[3, -2, -1], [2, -1, -1]]},
        {"block_tables": [[3, 2**31, -1], [2, -1, -1]]},
        {"block_tables": [[3.0, 5.0], [2.0, 1.0]]},
        {"positions": [1, 2]},
        {"slots": [1, 2]},
        {"slots": [1, 2, -2]},
        {"kv_starts": [0]},
        {"kv_starts": [-1, 0]},
        {"kv_pads": [-1, 0]},
        {"kv_lens": None},
    ],
)
def test_from_arrays_refuses(changes):
    with pytest.raises((ValueError, TypeError, OverflowError)):
        built(**changes)
