"""Odd input to the cpu backend: it computes what the oracle computes, whatever memory that is not seen holds."""

from types import SimpleNamespace

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache
from pagedcache.backends import get
from pagedcache.backends.cpu import CpuBackend
from pagedcache.core import Step


def both(spec, num_blocks, fill, step, q, **options):
    """What cpu and numpy make of the same pool, which `fill` fills by its arrays."""
    results = []
    for backend in (CpuBackend(threads=2), get("numpy")):
        storage = backend.allocate(spec, num_blocks)
        fill(*storage.view(0), *(storage.scales(0) or ()))
        results.append(backend.attend(storage, 0, q, step, **options))
    return results


def test_prefixes_shared_by_sequences_without_new_tokens():
    spec = CacheSpec(1, 1, 4, block_size=4)
    with KVCache(spec, num_blocks=8) as cache:
        [parent] = cache.admit([range(9)]).ids
        zeros = np.zeros((9, 1, 4), np.float32)
        step = cache.extend([parent], 9)
        cache.attend(0, zeros, zeros, zeros, step)
        cache.commit(step, range(9))
        [[kid]] = cache.fork([parent])
        step = cache.extend([parent, kid], [0, 0], cascade=True)
        assert cache.attend(0, zeros[:0], None, None, step).shape == (0, 1, 4)
        cache.abandon(step)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3"])
@pytest.mark.parametrize("given", [np.float16, np.float32])
def test_wide_heads_with_scales(dtype, given):
    spec = CacheSpec(1, 1, 4096, dtype=dtype, block_size=4)
    k = np.random.default_rng(0).standard_normal((3, 1, 4096)).astype(given)
    pools = []
    for backend in (CpuBackend(threads=1), get("numpy")):
        storage = backend.allocate(spec, 2)
        backend.write(storage, 0, k, k, [4, 5, 6])
        pools.append(backend.read_blocks(storage, [1]))
    np.testing.assert_array_equal(*pools)


def test_rows_that_end_at_the_last_coordinate():
    spec = CacheSpec(1, 1, 2, block_size=1024)
    step = Step.from_arrays(np.ones((1, 2**21), np.int32), [2**31 - 1], [0, 1], block_size=1024)

    def fill(k, v):
        k[1], v[1] = 1, np.arange(1024, dtype=np.float32)[:, None, None]

    cpu, numpy = both(spec, 1, fill, step, np.ones((1, 1, 2), np.float32), window=5)
    np.testing.assert_allclose(cpu, numpy, rtol=1e-6)


@pytest.mark.parametrize("q_len", [1, 2, 25])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_tokens_of_a_tree_that_a_query_does_not_see_may_hold_anything(q_len, poison):
    """One query that does not see itself; two; and a tile of 24 and one of 1 with 8 query heads each."""
    spec = CacheSpec(1, 1, 4, block_size=64)
    step = Step.from_arrays([[1]], [q_len + 1], [0, q_len], block_size=64)
    seen = np.tri(q_len, dtype=np.uint8)
    seen[-1, 0] = 0  # the last query does not see the first new token
    mask = np.packbits(seen.ravel(), bitorder="little")

    def fill(k, v):
        v[1] = 1
        v[1, 1] = poison

    q = np.ones((q_len, 8, 4), np.float32)
    options = {"mask": mask, "mask_indptr": np.array([0, mask.size])}
    with np.errstate(all="ignore"):
        cpu, numpy = both(spec, 1, fill, step, q, **options)
    np.testing.assert_array_equal(cpu[-1], 1)
    np.testing.assert_array_equal(cpu[-1], numpy[-1])


def test_scales_that_a_query_does_not_see_may_be_nan():
    spec = CacheSpec(1, 1, 4, dtype="int8", block_size=16)
    step = Step.from_arrays([[1]], [2], [0, 2], block_size=16)
    mask = np.array([0b1010], np.uint8)  # each sees the second token alone

    def fill(k, v, k_scales, v_scales):
        v[1] = 1
        k_scales[1] = v_scales[1] = 1
        k_scales[1, 0] = v_scales[1, 0] = np.nan

    cpu, numpy = both(spec, 1, fill, step, np.ones((2, 1, 4), np.float32), mask=mask, mask_indptr=np.array([0, 1]))
    np.testing.assert_array_equal(cpu, 1)
    np.testing.assert_array_equal(numpy, 1)


def test_positions_of_ones_own_cost_no_square():
    spec = CacheSpec(1, 1, 2, block_size=1024)
    n = 300_000
    tables = np.ones((1, -(-n // 1024)), np.int32)
    step = Step.from_arrays(tables, [n], [0, n], block_size=1024, positions=np.arange(n)[::-1].copy())
    backend = CpuBackend(threads=1)
    q = np.ones((n, 1, 2), np.float32)
    backend.check_attend(backend.allocate(spec, 1), 0, q, step)  # makes the plan; 90 GB if it had a byte for each pair


def test_lse_over_the_end_of_q():
    spec = CacheSpec(1, 1, 8, block_size=64)
    step = Step.from_arrays(np.arange(1, 11, dtype=np.int32)[None], [600], [0, 600], block_size=64)
    rng = np.random.default_rng(0)
    buffer = rng.standard_normal(600 * 8).astype(np.float32)
    fresh = buffer.copy().reshape(600, 1, 8)
    k = rng.standard_normal((600, 1, 8)).astype(np.float32)
    backend = CpuBackend(threads=2)
    storage = backend.allocate(spec, 10)
    backend.write(storage, 0, k, k, np.arange(64, 664))
    expected = backend.attend(storage, 0, fresh, step)
    for _ in range(2):  # the long way first, then the usual one
        q = buffer.copy()
        out = backend.attend(storage, 0, q.reshape(600, 1, 8), step, lse=q[-600:].reshape(600, 1))
        np.testing.assert_array_equal(out, expected)


def test_more_threads_than_there_is_room_for():
    assert CpuBackend(threads=2**40).threads == 256


@pytest.mark.parametrize("q_len", [1, 25])
def test_scores_far_below_any_that_models_make(q_len):
    step = Step.from_arrays(np.array([[1, 2, 3, 4, 5, 6, 7]], np.int32), [28], [0, q_len], block_size=4)

    def fill(k, v):
        k[1:] = -np.random.default_rng(5).uniform(1, 2, k[1:].shape)
        v[1:] = np.random.default_rng(6).standard_normal(v[1:].shape)

    spec, q = CacheSpec(1, 1, 4, block_size=4), np.full((q_len, 1, 4), 1e32, np.float32)
    np.testing.assert_allclose(*both(spec, 7, fill, step, q), rtol=1e-5)


@pytest.mark.parametrize("far", [0, 2**31 - 6, 2**31 + 7, 2**40, -(2**40), -(2**31) + 6, 2**61 - 3])
def test_slopes_where_positions_are_large(far):
    """Positions of new tokens may be the caller's own; those of the keys before them are places."""
    step = Step.from_arrays(
        np.array([[1, 2, 3]], np.int32), [12], [0, 4], block_size=4, positions=far + np.arange(4, dtype=np.int64)
    )

    def fill(k, v):
        k[1:], v[1:] = 0, np.arange(12, dtype=np.float32).reshape(3, 4, 1, 1)

    spec, q, slopes = CacheSpec(1, 1, 2, block_size=4), np.ones((4, 1, 2), np.float32), np.float32([1e-3])
    np.testing.assert_allclose(*both(spec, 3, fill, step, q, alibi_slopes=slopes), rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_subnormal_numbers_where_the_caller_flushes_them(threads):
    torch = pytest.importorskip("torch")
    backend, rows = CpuBackend(threads=threads), 64
    storage = backend.allocate(CacheSpec(1, 8, 64, block_size=16), 16)
    storage.view(0)[1][1:] = 1e-40
    tables = np.arange(1, 17, dtype=np.int32)[None].repeat(rows, 0)
    step = Step.from_arrays(tables, [256] * rows, np.arange(rows + 1), block_size=16)
    if not torch.set_flush_denormal(True):
        pytest.skip("torch cannot flush here")
    try:
        out = backend.attend(storage, 0, np.zeros((rows, 8, 64), np.float32), step)
        kept = np.float32(1e-30) * np.float32(1e-10) == 0  # the caller's way of computing is as it was
    finally:
        torch.set_flush_denormal(False)
    assert kept
    assert (out.view(np.int32) == np.float32(1e-40).view(np.int32)).all()


def test_layers_of_one_group_that_look_through_windows_in_turn():
    backend = CpuBackend(threads=1)
    storage = backend.allocate(CacheSpec(1, 1, 4, block_size=4), 3)
    step = Step.from_arrays(np.array([[1, 2, 3]], np.int32), [12], [0, 1], block_size=4)
    plans = []
    for _ in range(2):
        for options in ({}, {"window": 3}, {"window": 3, "sink_tokens": 2}):
            backend.attend(storage, 0, np.ones((1, 1, 4), np.float32), step, **options)
        plans.append(sorted(map(id, step.memo.values())))
    assert len(plans[0]) == 3
    assert plans[1] == plans[0]


def test_copies_of_a_step_with_lengths_of_their_own():
    """Its memo comes along, and one copy may lie where another lay: nothing kept for one may serve the other."""
    backend = CpuBackend(threads=1)
    storage = backend.allocate(CacheSpec(1, 1, 4, block_size=4), 3)
    storage.view(0)[1][1:] = np.arange(12, dtype=np.float32).reshape(3, 4, 1, 1)
    step = Step.from_arrays(np.array([[1, 2, 3]], np.int32), [12], [0, 1], block_size=4)
    names = [name for name in dir(step) if not name.startswith("_")]
    for length in (12, 5, 8):
        copy = SimpleNamespace(**{name: getattr(step, name) for name in names})
        copy.kv_lens, copy.positions = np.array([length], np.int32), np.array([length - 1])
        out = backend.attend(storage, 0, np.zeros((1, 1, 4), np.float32), copy)
        np.testing.assert_allclose(out, (length - 1) / 2, rtol=1e-6)
        del copy
