"""Faults that gave a sequence somebody else's K/V: beams, compaction, swaps. The bytes are read back from the pool."""

import numpy as np
import pytest

from pagedcache import OutOfBlocks

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])


@DTYPES
@pytest.mark.parametrize("parents", [[1, 1, 0], [2, 0, 0], [0, 1, 2], [1, 2, 0]])
def test_w38_beams_go_on_from_their_parents(make, dtype, parents):
    told = make(dtype=dtype)
    beams = [told.prompt([1, 2, 3, 4, 5])]
    beams += told.cache.fork(beams, 2)[0].tolist()
    told.append({sid: [10 + i] for i, sid in enumerate(beams)})
    told.cache.reorder(beams, parents)
    told.append({sid: [20 + i] for i, sid in enumerate(beams)})
    for i, (sid, parent) in enumerate(zip(beams, parents, strict=True)):
        assert told.held(sid) == [1, 2, 3, 4, 5, 10 + parent, 20 + i]


@pytest.mark.parametrize("bad", [[0, 3], [-1, 0], [0]])
def test_w38_a_parent_that_is_not_there_changes_nothing(make, bad):
    told = make()
    beams = [told.prompt([1, 2, 3]), told.prompt([4, 5, 6])]
    before = told.cache.stats()
    with pytest.raises((ValueError, IndexError)):
        told.cache.reorder(beams, bad)
    assert told.cache.stats() == before and [told.held(sid) for sid in beams] == [[1, 2, 3], [4, 5, 6]]


@DTYPES
def test_w35_compaction_moves_the_bytes_along(make, dtype):
    told = make(num_blocks=64, block_size=2, dtype=dtype)
    filler = told.cache.pool.allocate(64)
    told.cache.pool.decref(filler[:40:2])  # so that the sequences get every other block
    sids = [told.prompt(range(i, i + 9)) for i in (0, 20, 40, 60)]
    told.cache.pool.decref([*filler[1:40:2], *filler[40:]])
    told.cache.release(sids[1:2])
    (kid,) = told.cache.fork(sids[:1], at=4)[0].tolist()
    live = [sids[0], *sids[2:], kid]
    before, shared = [told.held(sid) for sid in live], told.cache.stats().shared
    assert told.cache.compact() > 0, "nothing had to move: the test shows nothing"
    assert [told.held(sid) for sid in live] == before
    assert told.cache.stats().shared == shared == 2
    assert told.cache.match([[*range(40, 49), 0]])[0] == 8
    told.append({sid: [101] for sid in live})
    assert [told.held(sid) for sid in live] == [[*tokens, 101] for tokens in before]


@DTYPES
def test_r03_t09_swapped_sequences_come_back_with_their_own_bytes(make, dtype):
    """Twelve sequences take turns in a pool that has room for three."""
    told, rng = make(num_blocks=6, dtype=dtype), np.random.default_rng(0)
    inside, tokens = [], {}
    for turn in rng.integers(0, 12, 80).tolist():
        if len(inside) == 3:
            told.cache.swap_out([inside.pop(int(rng.integers(3)))])
        known = [sid for sid in tokens if tokens[sid][0] == turn * 10]
        if not known:
            inside.append(told.prompt([turn * 10 + i for i in range(6)]))
            tokens[inside[-1]] = told.held(inside[-1])
        elif known[0] not in inside:
            assert told.cache.swap_in(known) == 2
            inside += known
            assert told.held(known[0]) == tokens[known[0]]
    assert len(tokens) == 12


def test_c03_t04_a_restore_without_room_changes_nothing(make):
    told = make(num_blocks=4)
    x = told.prompt([1, 2, 3, 4, 5, 6, 7, 8, 9])
    told.cache.swap_out([x])
    y = told.prompt([11, 12, 13, 14, 15, 16])
    before = told.cache.stats()
    for _ in range(2):
        with pytest.raises(OutOfBlocks):
            told.cache.swap_in([x])
        assert told.cache.stats() == before and told.held(y) == [11, 12, 13, 14, 15, 16]
    told.cache.release([y])
    assert told.cache.swap_in([x]) == 3
    assert told.held(x) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_m05_counters_add_up_over_forks_and_swaps(make):
    told = make(num_blocks=8)
    sid = told.prompt([1, 2, 3, 4, 5, 6, 7, 8])
    told.cache.fork([sid], 3)
    stats = told.cache.stats()
    assert (stats.used, stats.tokens) == (2, 32), "physical and logical use are two numbers"
    other = told.prompt([11, 12, 13, 14, 15])
    for verb in (told.cache.swap_out, told.cache.swap_in, told.cache.release):
        verb([other])
        stats = told.cache.stats()
        assert stats.used + stats.free == 8 and 0 <= stats.cached <= stats.free
    assert stats.used == 2 and stats.swapped == 0
