"""The plan of a step for a GPU: items cover what is seen, once; merges name all parts; it depends on nobody else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedcache.backends.cuda._geometry import division
from pagedcache.backends.cuda._params import NEVER
from pagedcache.backends.cuda._plan import make_plan, span_length

NO_PREFIXES = np.empty((0, 3), np.int32)
SEQUENCE, TOKEN, ROWS, ROW, PLACE, BEGIN, END, PART = range(8)


def plan(
    sequences, group=1, block_size=16, window=None, sinks=0, tensor=True, widest=128, prefixes=NO_PREFIXES, **arrays
):
    """Plan sequences of (q_len, kv_len)."""
    q_lens, kv_lens = (np.array(column, np.int32) for column in zip(*sequences, strict=True))
    zeros = np.zeros(len(q_lens), np.int32)
    positions = [np.arange(kv - q, kv) for q, kv in sequences]
    step = {
        "qo_indptr": np.concatenate([[0], np.cumsum(q_lens)]).astype(np.int32),
        "kv_lens": kv_lens,
        "kv_starts": zeros,
        "kv_pads": zeros,
        "positions": np.concatenate(positions).astype(np.int64),
        "block_tables": np.ones((len(q_lens), -(-int(kv_lens.max()) // block_size) + 1), np.int32),
        "mask_indptr": None,
    } | arrays
    return make_plan(
        *step.values(), prefixes, 2**62 if window is None else window, sinks, group, block_size, 10, tensor, widest
    )


def items(made):
    """All items as one array, with the rows of their tile as an eleventh column."""
    lists = [(made.few, 16), (made.many64, 64), (made.many128, 128)]
    return np.concatenate([np.column_stack([array, np.full(len(array), tile, np.int32)]) for array, tile in lists])


lengths = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 9000)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    min_size=1,
    max_size=4,
).filter(lambda pairs: any(kv for _, kv in pairs))


@settings(deadline=None, max_examples=60)
@given(lengths, st.integers(1, 9), st.one_of(st.none(), st.integers(1, 700)), st.integers(0, 40), st.booleans())
def test_every_row_has_every_key_it_sees_once(sequences, group, window, sinks, tensor):
    made = plan(sequences, group, window=window, sinks=sinks, tensor=tensor)
    found = items(made)
    for number, (q_len, kv_len) in enumerate(sequences):
        mine = found[found[:, SEQUENCE] == number]
        for token in {0, q_len // 2, q_len - 1} if q_len else ():
            seen = np.zeros(kv_len + 1, int)
            row, place = token * group, kv_len - q_len + token
            for item in mine[(mine[:, ROW] <= row) & (row < mine[:, ROW] + mine[:, -1])]:
                seen[item[BEGIN] : item[END]] += 1
            low = 0 if window is None else max(0, place - window + 1)
            assert (seen[low : place + 1] == 1).all()
            assert (seen[: min(sinks, place + 1)] == 1).all()
            assert seen.max() <= 1


@settings(deadline=None, max_examples=40)
@given(lengths, st.integers(1, 9), st.integers(0, 3))
def test_a_sequence_is_cut_the_same_whoever_else_is_there(sequences, group, number):
    number %= len(sequences)
    if not sequences[number][1]:
        return
    together, alone = items(plan(sequences, group)), items(plan([sequences[number]], group))
    mine = together[together[:, SEQUENCE] == number]
    columns = [ROWS, ROW, PLACE, BEGIN, END, 10]
    np.testing.assert_array_equal(np.unique(mine[:, columns], axis=0), np.unique(alone[:, columns], axis=0))


@settings(deadline=None, max_examples=40)
@given(lengths, st.integers(1, 9))
def test_partial_results_have_places_of_their_own_and_are_all_merged(sequences, group):
    made = plan(sequences, group)
    found = items(made)
    partial = found[found[:, PART] >= 0]
    places = [set(range(part, part + tile // 16)) for part, tile in partial[:, [PART, -1]].tolist()]
    assert sorted(unit for place in places for unit in place) == list(range(made.parts))
    merged = [part + i * units for _, _, _, part, count, units, *_ in made.merges.tolist() for i in range(count)]
    assert sorted(merged) == sorted(partial[:, PART].tolist())


def test_long_items_come_first():
    keys = plan([(1, 5000), (1, 30), (1, 700), (1, 40_000)]).few
    sizes = (keys[:, END] - keys[:, BEGIN]) // 64
    assert (np.diff(sizes) <= 0).all()


def test_a_shared_prefix_is_attended_to_once():
    made = plan([(1, 300), (1, 310), (2, 290)], group=4, prefixes=np.array([[0, 3, 256]], np.int32))
    prefix = made.few[made.few[:, PLACE] == NEVER]
    assert prefix[:, ROWS].tolist() == [16] * 2
    assert sorted(map(tuple, prefix[:, [BEGIN, END]].tolist())) == [(0, 128), (128, 256)]
    rest = made.few[made.few[:, PLACE] != NEVER]
    assert rest[:, BEGIN].min() == 256
    assert made.merges[:, -1].tolist() == [0, 4, 8]  # where each sequence's rows begin among those of the prefix


@pytest.mark.parametrize(
    "arrays",
    [
        {"kv_lens": np.array([40, 500], np.int32)},
        {"kv_lens": np.array([40, -1], np.int32)},
        {"kv_pads": np.array([0, -1], np.int32)},
        {"kv_starts": np.zeros(1, np.int32)},
        {"qo_indptr": np.array([0, 2, 1], np.int32)},
        {"qo_indptr": np.array([1, 1, 2], np.int32)},
        {"block_tables": np.zeros((2, 4), np.int32)},
        {"block_tables": np.full((2, 4), 11, np.int32)},
        {"positions": np.array([39, 2**62], np.int64)},
    ],
)
def test_arrays_that_contradict_each_other_have_no_plan(arrays):
    assert plan([(1, 40), (1, 50)]) is not None
    assert plan([(1, 40), (1, 50)], **arrays) is None


@pytest.mark.parametrize("tile", [16, 64, 128])
def test_spans_are_never_longer_for_shorter_sequences(tile):
    found = [span_length(length, tile, 64) for length in (1, 1024, 1025, 8192, 8193, 32768, 32769, 10**6)]
    assert found == sorted(found)


@settings(deadline=None)
@given(st.integers(1, 1024), st.integers(0, 2**31 - 1))
def test_division_by_multiplication(divisor, number):
    magic, shift = division(divisor)
    assert magic < 2**32
    assert (2 * number * magic >> 32) >> shift == number // divisor
