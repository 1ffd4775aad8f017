"""Faults where arrays come in from, or go out to, other libraries."""

import gc
import weakref

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache
from pagedcache.simple import BlockManager, PagedAttention, SequenceManager

BITS = {"float16": np.uint16, "bfloat16": np.uint16, "float8_e4m3": np.uint8}


def cache_of(dtype="float32", num_blocks=4, layout="NHD"):
    return KVCache(CacheSpec(1, 2, 4, block_size=2, dtype=dtype, layout=layout), num_blocks=num_blocks)


def attended(cache, q, k, v):
    """Attention of a fresh prompt to itself."""
    (sid,) = cache.admit([[1] * len(k)]).ids
    step = cache.extend([sid], len(k))
    try:
        return cache.attend(0, q, k, v, step)
    finally:
        cache.abandon(step)
        cache.release([sid])


@pytest.mark.parametrize("dtype", BITS)
def test_i03_types_that_cython_does_not_know_pass_every_entry(dtype):
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 3, 2, 4), np.float32)
    with cache_of(dtype) as cache:
        out = attended(cache, q, k, v)
        assert np.isfinite(out).all() and cache.storage.view(0)[0].itemsize == np.dtype(BITS[dtype]).itemsize
        record = cache.backend.read_blocks(cache.storage, [1, 2])
        cache.backend.write_blocks(cache.storage, [3, 4], record)
        cache.backend.copy_blocks(cache.storage, [(1, 3)])
        cache.backend.copy_slots(cache.storage, [2, 3], [8, 9])
        ours = cache.storage.export()[0]
        with KVCache(cache.spec, num_blocks=4, storage=[[array.copy() for array in ours]]) as again:
            np.testing.assert_array_equal(attended(again, q, k, v), out)
        del ours
    manager = BlockManager(4, 2, 2, 4, dtype=dtype)
    sequences = SequenceManager(manager)
    sequences.create_sequence("a")
    sequences.append_kv("a", 0, k[0], v[0])
    assert PagedAttention(manager).compute(q[:1], sequences.sequences["a"], 1).shape == (1, 2, 4)


def test_i02_bfloat16_of_torch_goes_in_and_comes_out_bit_for_bit():
    torch = pytest.importorskip("torch")
    bits = np.array([0x8000, 0x7FC5, 0xFFC1, 0x0001, 0x3F80, 0x7F80, 0xFF80, 0x0000], np.uint16)  # -0.0, NaNs, ...
    k, ones = torch.from_numpy(bits).view(torch.bfloat16).reshape(2, 4), torch.ones(2, 4, dtype=torch.bfloat16)
    manager = BlockManager(2, 4, 2, 4, dtype="bfloat16")
    sequences = SequenceManager(manager)
    sequences.create_sequence("a")
    sequences.append_kv("a", 0, k, ones)
    table = sequences.sequences["a"]
    stored = np.asarray(manager.pages[table.get_physical_page(0)].keys)
    np.testing.assert_array_equal(stored.view(np.uint16).reshape(-1)[:8], bits)
    sequences.append_kv("a", 0, ones, ones)
    out = PagedAttention(manager).compute(ones[None], table, 1)
    assert out.dtype == torch.bfloat16 and (out == 1).all()


def test_i02_a_kvcache_takes_the_bits_of_a_bfloat16_tensor_and_refuses_the_tensor_by_name():
    torch = pytest.importorskip("torch")
    ones = torch.ones(1, 2, 4, dtype=torch.bfloat16)
    with cache_of("bfloat16") as cache:
        with pytest.raises(TypeError, match=r"k is Tensor.*BFloat16"):
            attended(cache, ones, ones, ones)
        assert (attended(cache, *[ones.view(torch.uint16)] * 3) == 1).all()


def test_i05_strides_of_axes_of_size_one_do_not_matter():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 2, 4), np.float32)
    odd = [np.lib.stride_tricks.as_strided(array, strides=(12345, *array.strides[1:])) for array in (q, k, v)]
    with cache_of() as cache:
        np.testing.assert_array_equal(attended(cache, *odd), attended(cache, q, k, v))


def test_i12_a_tensor_that_requires_grad_is_refused_by_name():
    torch = pytest.importorskip("torch")
    ones = torch.ones(1, 2, 4)
    with cache_of() as cache, pytest.raises(TypeError, match=r"k is Tensor.*detach"):
        attended(cache, ones, torch.ones(1, 2, 4, requires_grad=True), ones)


def test_i04_readers_of_the_pool_cannot_write_into_it():
    """NumPy keeps the flag of an exported array; torch ignores it, which docs/caveats.md says."""
    with cache_of() as cache:
        shared = np.from_dlpack(cache.storage.export()[0][0])
        with pytest.raises(ValueError, match="read-only"):
            shared[...] = 1
        del shared


def test_i10_an_exported_array_of_a_cpu_takes_no_stream():
    with cache_of() as cache:
        view = cache.storage.export(writable=True)[0][0]
        for stream in (0, 1, 2, -1):
            with pytest.raises(RuntimeError, match="stream"):
                view.__dlpack__(stream=stream)
        assert view.__dlpack_device__() == (1, 0)
        del view


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("rows", [slice(None), slice(0, 0)])
def test_m13_capsules_that_nobody_takes_let_the_pool_go(used, rows):
    cache = cache_of()
    view = cache.storage.export(writable=True)[0][0][rows]
    for _ in range(1000):
        capsule = np.from_dlpack(view) if used else view.__dlpack__()
    del capsule, view
    gone = weakref.ref(cache.storage)
    cache.close()  # refuses while an array is in use
    del cache
    gc.collect()
    assert gone() is None


def test_c12_what_was_read_of_a_sequence_does_not_change(make):
    told = make()
    sid = told.prompt([1, 2, 3])
    sequence = told.cache.sequence(sid)
    length, table = sequence.length, sequence.block_table
    before = table.tolist()
    told.append({sid: [4, 5, 6, 7, 8]})
    assert (length, table.tolist()) == (3, before)
    with pytest.raises(ValueError, match="read-only"):
        table[...] = 0
    assert told.held(sid) == [1, 2, 3, 4, 5, 6, 7, 8]
