"""Every verb with arguments it must take as they are meant, or refuse by name; a refused call changes nothing.

I04 read-only, I05 strided, I06 big-endian, I07 widths and values, W37 sizes.
"""

import contextlib
from array import array

import numpy as np
import pytest
from drive import blocks_of, feed, prefill, snapshot

from pagedcache.core import BlockPool, SequenceTable
from pagedcache.errors import PagedCacheError

REFUSED = (ValueError, TypeError, OverflowError, LookupError)

FORMS = {
    "list": list,
    "tuple": tuple,
    "int32": lambda x: np.array(x, np.int32 if max(x, default=0) < 2**31 else np.int64),
    "int64": lambda x: np.array(x, np.int64),
    "uint64": lambda x: np.array(x, np.uint64),
    "big-endian": lambda x: np.array(x, ">i8"),
    "read-only": lambda x: np.frombuffer(np.array(x, np.int64).tobytes(), np.int64),
    "strided": lambda x: np.repeat(np.array(x, np.int64), 3)[::3],
    "backward": lambda x: np.array(x[::-1], np.int64)[::-1],
    "misaligned": lambda x: np.frombuffer(b"\0" + np.array(x, np.int64).tobytes(), np.int64, offset=1),
    "fortran column": lambda x: np.asfortranarray(np.tile(np.array(x, np.int64)[:, None], (1, 2)))[:, 1],
    "numpy scalars": lambda x: [np.int64(v) for v in x],
    "array": lambda x: array("q", x),
    "memoryview": lambda x: memoryview(np.array(x, np.int64)),
}
NO_INTEGERS = {
    "float": [1.0],
    "fraction": [1.5],
    "float array": np.array([1.0]),
    "bool": [True],
    "bool array": np.array([True]),
    "string": ["1"],
    "text": "1",
    "bytes": b"1",
    "none": None,
    "none inside": [None],
    "object": [object()],
    "nested": [[1]],
    "complex": np.array([1 + 0j]),
    "date": np.array(["2020-01-01"], "datetime64[D]"),
    "span": np.array([1], "timedelta64[s]"),
    "too many dimensions": np.zeros((1, 1, 1), np.int64),
    "text array": np.array(["x"]),
}


@pytest.fixture
def world(make):
    """A table with one row of six tokens, and its handle."""
    table = make()
    return table, prefill(table, range(6))


@pytest.mark.parametrize("form", FORMS)
def test_i07_any_integer_sequence_will_do(make, form):
    table, convert = make(), FORMS[form]
    admission = table.admit([convert([1, 2, 3, 4, 5]), convert([6, 7])], pads=convert([0, 2]))
    assert admission.status.tolist() == [0, 0]
    ids = convert(admission.ids.tolist())
    assert table.can_extend(ids, convert([5, 2]))
    step = table.extend(ids, convert([5, 2]))
    assert table.commit(step, convert([1, 2, 3, 4, 5, 6, 7])) == 1
    assert table.match([convert([1, 2, 3, 4, 5])])[0] == 4
    kids = table.fork(ids, 1, at=convert([3, 3]))
    table.truncate(ids, convert([2, 3]))
    table.release(convert([*admission.ids.tolist(), *kids.ravel().tolist()]))
    assert table.stats().free == 16


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32])
def test_i07_narrow_integers_will_do(make, dtype):
    table = make()
    [sid] = table.admit([np.array([1, 2, 3, 100, 5], dtype)], pads=np.array([0], dtype)).ids
    step = table.extend([sid], np.array([5], dtype))
    table.commit(step, np.array([1, 2, 3, 100, 5], dtype))
    assert table.match([[1, 2, 3, 100, 0]])[0] == 4
    table.truncate([sid], np.array([2], dtype))


def test_a_two_dimensional_array_is_a_list_of_prompts(make):
    """Rows of one length come as a matrix; each row is a prompt."""
    assert make().admit(np.ones((3, 5), np.int32)).status.tolist() == [0, 0, 0]


@pytest.mark.parametrize("bad", [b for b in NO_INTEGERS if b != "none"])
@pytest.mark.parametrize(
    "call",
    [
        lambda t, s, bad: t.admit([bad]),
        lambda t, s, bad: t.match([bad]),
        lambda t, s, bad: t.admit([[1]], pads=bad),
        lambda t, s, bad: t.extend(bad, [1]),
        lambda t, s, bad: t.extend([s], bad),
        lambda t, s, bad: t.can_extend(bad, [1]),
        lambda t, s, bad: t.can_extend([s], bad),
        lambda t, s, bad: t.fork(bad),
        lambda t, s, bad: t.fork([s], 1, at=bad),
        lambda t, s, bad: t.truncate(bad, [1]),
        lambda t, s, bad: t.truncate([s], bad),
        lambda t, s, bad: t.release(bad),
    ],
    ids="admit match pads ids counts can-ids can-counts fork fork-at truncate-ids truncate release".split(),
)
def test_i07_what_is_no_integer_is_refused(world, call, bad):
    table, sid = world
    before = snapshot(table, sid)
    with pytest.raises(REFUSED):
        call(table, sid, NO_INTEGERS[bad])
    assert snapshot(table, sid) == before


@pytest.mark.parametrize("verb", ["admit", "match", "extend", "can_extend", "fork", "truncate", "release"])
def test_none_is_no_argument(world, verb):
    table, sid = world
    more = {"extend": ([1],), "can_extend": ([1],), "truncate": ([1],)}.get(verb, ())
    before = snapshot(table, sid)
    with pytest.raises(REFUSED):
        getattr(table, verb)(None, *more)
    for bad in (None, [None]) if more else ():
        with pytest.raises(REFUSED):
            getattr(table, verb)([sid], bad)
    assert snapshot(table, sid) == before


@pytest.mark.thread_unsafe  # its arguments are shared
@pytest.mark.parametrize("bad", [b for b in NO_INTEGERS if b != "none"])
def test_i07_commit_takes_no_other_tokens(world, bad):
    table, sid = world
    step = table.extend([sid], 1)
    with pytest.raises(REFUSED):
        table.commit(step, NO_INTEGERS[bad])
    assert not step.closed
    table.commit(step, [1])


@pytest.mark.parametrize("bad", [-1, 2**31, 2**32 + 1, -(2**63), 2**63, 2**64 + 1])
@pytest.mark.parametrize("verb", ["admit", "match"])
def test_token_ids_out_of_range_are_named(world, verb, bad):
    table, sid = world
    before = snapshot(table, sid)
    with pytest.raises((ValueError, OverflowError), match=str(bad)):
        getattr(table, verb)([[1, 2], [1, bad, 2]])
    assert snapshot(table, sid) == before


@pytest.mark.parametrize("bad", [-1, -(2**31), 2**31, 2**32, 2**62, 2**63, 2**64])
@pytest.mark.parametrize("form", [list, lambda x: x[0]])
def test_counts_out_of_range_are_refused(world, bad, form):
    table, sid = world
    before = snapshot(table, sid)
    with pytest.raises((ValueError, OverflowError)):
        table.extend([sid], form([bad]))
    with contextlib.suppress(ValueError, OverflowError):
        assert table.can_extend([sid], form([bad])) is False
    assert snapshot(table, sid) == before


def test_counts_whose_sum_overflows_32_bits_are_refused(make):
    table = make(max_sequences=8)
    ids = table.admit([[1]] * 8).ids
    with pytest.raises((ValueError, MemoryError)):
        table.extend(ids, [2**31 - 8] * 8)
    assert table.stats().used == 8


@pytest.mark.parametrize("counts", [[], [1, 1], np.ones((1, 1), np.int64)])
def test_one_count_for_each_row(world, counts):
    table, sid = world
    with pytest.raises(ValueError):
        table.extend([sid], counts)
    table.abandon(table.extend([sid], 1))


@pytest.mark.parametrize("bad", [-1, 2**31, 2**62, 2**64, 1.5, "3", None, True, [1, 2]])
def test_reserve_is_a_number_of_tokens(make, bad):
    table = make()
    try:
        assert table.admit([[1, 2]], reserve=bad).status[0] == 2  # too long for ever is a fair answer too
        assert bad not in (-1, True)
    except REFUSED:
        pass
    assert table.stats().sequences == 0


@pytest.mark.parametrize("pads", [[-1], [0, 0], [], [2**31], [2**62], 1.5, [[0]]])
def test_pads_are_one_number_for_each_prompt(make, pads):
    table = make()
    try:
        assert table.admit([[1, 2]], pads=pads).status[0] == 2
        assert pads in ([2**31], [2**62])
    except REFUSED:
        pass
    assert table.stats().sequences == 0


@pytest.mark.parametrize("prompts", [5, None, [5], "ab", ["ab"], [None], [[1], None], {1: 2}, np.array(3)])
def test_prompts_are_a_sequence_of_token_sequences(make, prompts):
    table = make()
    for verb in (table.admit, table.match):
        with pytest.raises(REFUSED):
            verb(prompts)
    assert table.stats().sequences == 0


def test_a_bad_prompt_after_good_ones_admits_none(make):
    table = make()
    with pytest.raises(ValueError):
        table.admit([[1, 2, 3], [4, -5]])
    assert table.stats().sequences == 0 and table.stats().used == 0


@pytest.mark.parametrize("bad", [0, -1, 1025, 2**31, 1.5, "4", None, True])
def test_w37_block_sizes_are_refused_when_the_table_is_made(bad):
    with pytest.raises(REFUSED):
        SequenceTable(BlockPool(4), bad)


@pytest.mark.parametrize("block_size", [1, 2, 3, 7, 16, 17, 64, 256, 1024])
def test_w37_every_block_size_works(make, block_size):
    for length in (1, block_size - 1, block_size, block_size + 1, 3 * block_size):
        table = make(num_blocks=4, block_size=block_size)
        sid = prefill(table, [3] * length)
        assert len(blocks_of(table, sid)) == -(-length // block_size)
        feed(table, [sid], [[4] * block_size])
        full = (length + block_size) // block_size * block_size
        assert table.match([[*[3] * length, *[4] * block_size]])[0] == min(full, length + block_size - 1)
        table.release([sid])
        assert table.stats().free == 4


@pytest.mark.parametrize("name", ["max_sequences", "max_length"])
@pytest.mark.parametrize("bad", [0, -1, 2**40, 2**64, 1.5, "4", True])
def test_bounds_of_the_table_are_checked(name, bad):
    try:
        table = SequenceTable(BlockPool(4), 4, **{name: bad})
    except REFUSED:
        return
    assert name == "max_length" and bad == 2**40, "a bound that cannot be kept was taken"
    assert table.admit([[1] * 17]).status[0] == 2


@pytest.mark.parametrize("pool", [None, 4, "pool", object()])
def test_the_pool_is_a_pool(pool):
    with pytest.raises((TypeError, ValueError)):
        SequenceTable(pool, 4)


def test_two_tables_on_one_pool_do_not_meet():
    """Blocks go to one or the other; check() of both still holds."""
    pool = BlockPool(8)
    try:
        one, two = SequenceTable(pool, 4), SequenceTable(pool, 4)
    except ValueError:
        return  # one table per pool is a rule that can be stated, too
    a, b = prefill(one, [1] * 9), prefill(two, [1] * 9)
    assert not set(blocks_of(one, a)) & set(blocks_of(two, b))
    assert two.match([[1] * 9])[0] == 8
    one.release([a])
    two.release([b])
    one.check(), two.check(), pool.check()
    assert pool.num_free == 8


def test_errors_are_pagedcache_errors_and_builtin_ones(world):
    table, sid = world
    with pytest.raises(PagedCacheError) as caught:
        table.release([sid + 1])
    assert isinstance(caught.value, LookupError)
