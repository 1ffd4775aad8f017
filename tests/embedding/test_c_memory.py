"""Whose memory a cache of the C interface uses: its own, the caller's, or none; and what it keeps for a step."""

import ctypes
import itertools

import numpy as np
import pytest
from c_cache import CCache
from c_table import Layer, address, api

BLOCK, HEADS, DIM = 4, 2, 8
ONES = np.ones((6, HEADS, DIM), np.float32)


def fill(cache, ids, tokens, layer=0):
    cache.extend(ids, [tokens])
    out = cache.attend(layer, ONES[:tokens], ONES[:tokens], ONES[:tokens])
    cache.commit()
    return out


def test_the_callers_memory_is_used_as_it_is():
    pools = [np.zeros((2, 6, BLOCK, HEADS, DIM), np.float32) for _ in range(2)]
    layers = (Layer * 2)(*(Layer(address(k), address(v), None, None, 5, BLOCK, HEADS, DIM) for k, v in pools))
    cache = CCache(num_layers=2, num_blocks=5, block_size=BLOCK, layers=ctypes.addressof(layers))
    del layers  # copied
    assert [api.layer(cache.handle, i).contents.k for i in range(2)] == [address(pool[0]) for pool in pools]
    assert not api.layer(cache.handle, 2) and not api.layer(cache.handle, -1)
    assert (fill(cache, cache.start(1), 6, layer=1) == 1).all()
    assert not pools[0].any() and pools[1].sum() == 2 * 6 * HEADS * DIM
    assert cache.stats.memory_bytes == 0
    cache.close()
    assert pools[1].sum() == 2 * 6 * HEADS * DIM


@pytest.mark.parametrize(("num_blocks", "alignment"), [(3, 64), (40_000, 2 << 20)])
def test_own_memory_is_aligned_and_zero(num_blocks, alignment):
    cache = CCache(num_layers=2, num_blocks=num_blocks, block_size=BLOCK, kv_heads=HEADS, head_dim=DIM, dtype="int8")
    arrays = [array for layer in (0, 1) for array in cache.arrays(layer)]
    assert cache.stats.memory_bytes >= sum(array.nbytes for array in arrays)
    assert all(array.ctypes.data % (alignment if array.nbytes >= alignment else 64) == 0 for array in arrays)
    assert not any(array[[0, 1, -1]].any() for array in arrays)
    spans = sorted((array.ctypes.data, array.nbytes) for array in arrays)
    assert all(at + size <= after for (at, size), (after, _) in itertools.pairwise(spans))
    fill(cache, cache.start(1), 6)
    assert not any(array[0].any() for array in arrays), "block 0 is nobody's"
    cache.close()


def test_bookkeeping_alone_names_the_copies():
    cache = CCache(num_layers=0, num_blocks=9, block_size=BLOCK)
    (parent,) = cache.start(1)
    step = cache.extend([parent], [6])
    tables = np.ctypeslib.as_array(ctypes.cast(step.block_tables, ctypes.POINTER(ctypes.c_int32)), (2,)).copy()
    assert cache.copies() == []
    cache.commit()
    child = cache.fork(parent)
    cache.extend([parent, child], [1, 1])
    ((source, target),) = cache.copies()
    assert source == tables[1] and target not in tables
    cache.commit()
    assert cache.copies() == []
    assert (cache.stats.used_blocks, cache.stats.shared_blocks) == (3, 1)
    cache.close()


def test_a_steps_arrays_stay_where_they_are():
    cache = CCache(num_layers=0, num_blocks=90, block_size=BLOCK)
    ids, places = cache.start(5), set()
    for count in (1, 7, 3):
        step = cache.extend(ids, [count] * 5)
        places.add(
            (ctypes.addressof(step), step.block_tables, step.qo_indptr, step.kv_lens, step.positions, step.slots)
        )
        assert (step.num_sequences, step.num_tokens) == (5, 5 * count)
        cache.abandon()
    assert len(places) == 1
    cache.close()


def test_more_windows_in_a_step_than_plans_are_kept():
    cache = CCache(num_layers=1, num_blocks=9, block_size=BLOCK, kv_heads=HEADS, head_dim=DIM)
    rng, ids = np.random.default_rng(2), cache.start(1)
    k = rng.standard_normal((20, HEADS, DIM), np.float32)
    cache.extend(ids, [20])
    first = [cache.attend(0, k, k, k, window=window) for window in range(1, 13)]
    again = [cache.attend(0, k, None, None, window=window) for window in range(1, 13)]
    cache.commit()
    assert all(one.tobytes() == other.tobytes() for one, other in zip(first, again, strict=True))
    assert len({one.tobytes() for one in first}) == 12
    assert first[0].tobytes() == k.tobytes()  # who sees only itself is itself
    cache.close()
