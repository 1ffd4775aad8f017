"""The verbs of KVCache that move bytes within the pool: commit of accepted tokens, beam steps, compact."""

import gc

import numpy as np
import pytest
from kv_drive import HEADS, Replaced, Rows, kv_of, make_cache

from pagedcache import StepClosed, StepOpen
from pagedcache.backends import get


@pytest.fixture(params=[("float32", "NHD"), ("float16", "HND")], ids="/".join)
def rows(request):
    dtype, layout = request.param
    with make_cache(num_blocks=49, dtype=dtype, layout=layout) as cache:
        yield Rows(cache)
        cache.check()


def fail(*_, **__):
    raise MemoryError("no scratch memory")


# -- accepted tokens --------------------------------------------------------------------------------


def test_accepted_tokens_stand_where_they_count(rows):
    a, b = rows.admit(list(range(6))), rows.admit([50, 51, 52])
    step = rows.cache.extend([a, b], [6, 3], depths=[0, 1, 1, 2, 2, 2, 0, 0, 1])
    rows.write(step, [*range(100, 106), *range(200, 203)])
    rows.cache.commit(step, [*range(100, 106), *range(200, 203)], [[0, 2, 5], [1, 2]])
    rows.tokens[a] += [100, 102, 105]
    rows.tokens[b] += [201, 202]
    rows.verify()
    rows.run({b: [7], a: [8]})
    rows.verify()


def test_what_is_found_later_has_the_accepted_bytes(rows):
    a = rows.admit(list(range(6)))
    step = rows.cache.extend([a], 4, depths=[0, 0, 1, 1])
    rows.write(step, [100, 101, 102, 103])
    assert rows.cache.commit(step, [100, 101, 102, 103], [[1, 3]]) == 1
    rows.cache.release([a])
    del rows.tokens[a]
    assert rows.cache.match([[*range(6), 101, 103, 0]])[0] == 8
    rows.admit([*range(6), 101, 103, 0])
    rows.verify()


def test_a_sharer_does_not_see_the_moves(rows):
    a = rows.admit(list(range(6)))
    rows.fork(a)
    step = rows.cache.extend([a], 3, depths=[0, 0, 1])
    rows.write(step, [100, 101, 102])
    rows.cache.commit(step, [100, 101, 102], [[1, 2]])
    rows.tokens[a] += [101, 102]
    rows.verify()


@pytest.mark.parametrize("accepted", [[[1]], [[5]], [], [[0], [0]], [[2, 1]]])
def test_a_refused_path_moves_nothing(rows, accepted):
    a = rows.admit(list(range(6)))
    step = rows.cache.extend([a], 3, depths=[0, 1, 1])
    rows.write(step, [100, 101, 102])
    stored = [array.copy() for array in rows.cache.storage.view(0)]
    for tokens in ([100, 101, 102], None):
        with pytest.raises(ValueError, match="accepted"):
            rows.cache.commit(step, tokens, accepted)
    with pytest.raises(ValueError, match="tokens"):
        rows.cache.commit(step, [100], [[0, 2]])
    for array, before in zip(rows.cache.storage.view(0), stored, strict=True):
        np.testing.assert_array_equal(array, before)
    rows.cache.commit(step, [100, 101, 102], [[0, 2]])
    rows.tokens[a] += [100, 102]
    rows.verify()


def test_moves_that_fail_leave_the_step_open(rows):
    a = rows.admit(list(range(6)))
    step = rows.cache.extend([a], 3, depths=[0, 1, 1])
    rows.write(step, [100, 101, 102])
    working, rows.cache.backend = rows.cache.backend, Replaced(copy_slots=fail)
    with pytest.raises(MemoryError, match="scratch"):
        rows.cache.commit(step, [100, 101, 102], [[0, 2]])
    rows.cache.backend = working
    assert rows.cache.open_steps == (step,) and rows.cache.sequence(a).length == 6
    rows.cache.commit(step, [100, 101, 102], [[0, 2]])
    rows.tokens[a] += [100, 102]
    rows.verify()


def test_a_newer_step_keeps_the_bytes_where_they_are():
    with make_cache(steps_in_flight=2) as cache:
        rows = Rows(cache)
        a = rows.admit(list(range(6)))
        old = cache.extend([a], 3, depths=[0, 1, 1])
        rows.write(old, [100, 101, 102])
        new = cache.extend([a], 1)
        stored = cache.storage.view(0)[0].copy()
        with pytest.raises(StepOpen):
            cache.commit(old, [100, 101, 102], [[0, 2]])
        with pytest.raises(StepClosed):
            cache.commit(new, [1], [[]])
        np.testing.assert_array_equal(cache.storage.view(0)[0], stored)
        cache.abandon(new)
        cache.commit(old, [100, 101, 102], [[0, 2]])
        rows.tokens[a] += [100, 102]
        rows.verify()


# -- beams ------------------------------------------------------------------------------------------


def test_beams_keep_their_bytes(rows):
    ids = [rows.admit([10 * k + i for i in range(n)]) for k, n in enumerate((6, 7, 3))]
    for turn, parents in enumerate(([1, 1, 0], [2, 0, 1], [0, 0, 0], [2, 2, 1])):
        rows.cache.reorder(ids, parents)
        former = [list(rows.tokens[s]) for s in ids]
        for sid, parent in zip(ids, parents, strict=True):
            rows.tokens[sid] = list(former[parent])
        rows.verify()
        rows.run({sid: [100 + 10 * turn + k] for k, sid in enumerate(ids)})
        rows.verify()


def test_attention_after_a_beam_step_reads_the_parents_keys(rows):
    ids = [rows.admit([1, 2, 3, 4, 5]), rows.admit([11, 12, 13])]
    q = np.ones((2, HEADS, 4), np.float32)

    def look(ids):
        step = rows.cache.extend(ids, 1)
        out = rows.cache.attend(0, q, *kv_of([9, 9], 0), step)
        rows.cache.abandon(step)
        return out

    before = look(ids)
    rows.cache.reorder(ids, [1, 0])
    np.testing.assert_array_equal(look(ids), before[::-1])


# -- several steps in flight ------------------------------------------------------------------------


def test_rows_of_two_open_steps_write_where_they_should():
    with make_cache(steps_in_flight=2) as cache:
        rows = Rows(cache)
        a = rows.admit(list(range(6)))
        kid = rows.fork(a)
        old = cache.extend([a, kid], [3, 1])
        new = cache.extend([kid, a], [4, 2])
        rows.write(new, [80, 81, 82, 83, 84, 85])  # whichever is computed first
        rows.write(old, [70, 71, 72, 73])
        cache.commit(old, [70, 71, 72, 73])
        rows.tokens[a] += [70, 71, 72]
        rows.tokens[kid] += [73]
        rows.verify()
        cache.commit(new, [80, 81, 82, 83, 84, 85])
        rows.tokens[kid] += [80, 81, 82, 83]
        rows.tokens[a] += [84, 85]
        rows.verify()


# -- compact ----------------------------------------------------------------------------------------


def scatter(rows):
    """Two sequences of 8 blocks in a pool of 49, two blocks in each group of four; three groups are vacant."""
    pool = rows.cache.pool
    filler = pool.allocate(49)
    pool.decref(filler[(filler % 2 == 0) & (filler >= 4) & (filler < 36)])
    ids = [rows.admit([k]) for k in range(2)]
    for turn in range(15):
        rows.run({sid: [2 * turn + 10, 2 * turn + 11] for sid in ids})
    pool.decref(filler[(filler % 2 == 1) | (filler < 4) | (filler >= 36)])
    return ids


def test_compact_moves_the_bytes_along(rows):
    ids = scatter(rows)
    before = [rows.cache.sequence(s).block_table.tolist() for s in ids]
    moved = 0
    while step := rows.cache.compact():
        moved += step
        rows.verify()
        rows.overwrite()
        rows.verify()
    assert moved >= 12 and [rows.cache.sequence(s).block_table.tolist() for s in ids] != before
    rows.run({sid: [90, 91] for sid in ids})
    rows.verify()


def test_prefixes_are_served_from_where_they_moved(rows):
    ids = scatter(rows)
    assert rows.cache.compact() > 0
    prompt = [*rows.tokens[ids[0]][:28], 7]
    rows.release(*ids)
    rows.admit(prompt)
    assert rows.cache.stats().hit_tokens >= 28
    rows.verify()


def test_a_compact_that_fails_changes_nothing(rows):
    ids = scatter(rows)
    tables = [rows.cache.sequence(s).block_table.tolist() for s in ids]
    before = rows.cache.stats()
    working, rows.cache.backend = rows.cache.backend, Replaced(copy_blocks=fail)
    with pytest.raises(MemoryError, match="scratch"):
        rows.cache.compact()
    rows.cache.backend = working
    assert rows.cache.stats() == before and [rows.cache.sequence(s).block_table.tolist() for s in ids] == tables
    rows.verify()


def test_an_open_step_keeps_every_byte_where_it_is(rows):
    ids = scatter(rows)
    step = rows.cache.extend(ids[:1], 1)
    copied = []
    working, rows.cache.backend = rows.cache.backend, Replaced(copy_blocks=lambda *args: copied.append(args))
    with pytest.raises(StepOpen):
        rows.cache.compact()
    rows.cache.backend = working
    assert not copied
    rows.cache.abandon(step)
    rows.verify()


@pytest.mark.parametrize("verb", ["release", "truncate"])
def test_a_finalizer_that_changes_tables_while_compact_copies(rows, verb):
    """The collector may run any finalizer where the backend makes arrays."""
    first, second = scatter(rows)

    class Owner:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            if verb == "release":
                rows.release(first)
            else:
                rows.cache.truncate([first], 1)
                del rows.tokens[first][1:]

    owners = [Owner()]

    def copy_blocks(*args):
        get("numpy").copy_blocks(*args)
        owners.clear()
        gc.collect()

    working, rows.cache.backend = rows.cache.backend, Replaced(copy_blocks=copy_blocks)
    rows.cache.compact()
    rows.cache.backend = working
    assert len(rows.tokens.get(first, [0])) == 1
    rows.verify(second)
    rows.verify()


def test_metadata_only_leaves_compaction_to_whoever_copies():
    with make_cache(num_blocks=49, storage="metadata") as cache:
        with pytest.raises(ValueError, match=r"metadata only.*sequences\.compaction"):
            cache.compact()
        assert cache.sequences.compact(cache.sequences.compaction()) == 0
