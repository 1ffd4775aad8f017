"""Step.from_arrays: a step without a table, for attention over tables kept elsewhere. DESIGN 3 (Views)."""

import numpy as np
import pytest
from drive import prefill

from pagedcache.core import Step

DERIVED = """block_tables kv_indices kv_indptr kv_last_page_len kv_lens kv_pads kv_starts positions qo_indptr slots
token_seq""".split()


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
    wide = {"slots", "positions"}
    assert all(getattr(step, name).dtype == (np.int64 if name in wide else np.int32) for name in DERIVED)


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


def test_from_arrays_agrees_with_the_table(make):
    table = make(num_blocks=32)
    ids = [prefill(table, range(7)), int(table.admit([[]]).ids[0]), prefill(table, [9] * 4, pads=[3])]
    step = table.extend(ids, [3, 0, 6])
    again = Step.from_arrays(
        step.block_tables, step.kv_lens, step.qo_indptr, block_size=4, kv_starts=step.kv_starts, kv_pads=step.kv_pads
    )
    for name in DERIVED:
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
