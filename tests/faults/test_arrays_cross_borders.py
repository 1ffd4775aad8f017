"""Faults where arrays come in from, or go out to, other libraries."""

import gc
import weakref

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache
from pagedcache.backends.host import queries
from pagedcache.exchange import _arrays
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


@pytest.fixture(params=["ml_dtypes", "uint16"])
def bfloat16_as(request, monkeypatch):
    """With ml_dtypes, and as if it were not installed."""
    if request.param == "ml_dtypes":
        pytest.importorskip("ml_dtypes")
    else:
        for module in (_arrays, queries):
            monkeypatch.setattr(module, "numpy_dtype", lambda name: np.dtype(np.uint16))
    return request.param


def tensor_of_bits(bits):
    torch = pytest.importorskip("torch")
    return torch.from_numpy(bits.astype(np.uint16).view(np.int16)).view(torch.bfloat16)


EVERY_BFLOAT16 = np.arange(2**16).reshape(8, 64, 128)  # -0.0, subnormals, infinities, quiet and signalling NaN


def test_i02_a_kvcache_takes_every_bfloat16_of_torch_bit_for_bit(bfloat16_as):
    given = tensor_of_bits(EVERY_BFLOAT16)
    with KVCache(CacheSpec(1, 64, 128, block_size=8, dtype="bfloat16"), num_blocks=1) as cache:
        attended(cache, given, given, given.flip(0))
        k, v = (np.array(array[1]).view(np.uint16) for array in cache.storage.view(0))
    np.testing.assert_array_equal(k, EVERY_BFLOAT16)
    np.testing.assert_array_equal(v, EVERY_BFLOAT16[::-1])


def test_i02_bfloat16_of_torch_is_stored_exactly_in_float32(bfloat16_as):
    with KVCache(CacheSpec(1, 64, 128, block_size=8), num_blocks=1) as cache:
        attended(cache, *[tensor_of_bits(EVERY_BFLOAT16)] * 3)
        np.testing.assert_array_equal(np.array(cache.storage.view(0)[0][1]).view(np.uint32), EVERY_BFLOAT16 << 16)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_i02_attention_with_tensors_of_bfloat16_is_that_with_their_values(dtype, bfloat16_as):
    torch = pytest.importorskip("torch")
    q, k, v = torch.randn(3, 3, 2, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    slopes = torch.tensor([0.5, 0.25], dtype=torch.bfloat16)
    with cache_of(dtype) as cache:
        (sid,) = cache.admit([[1] * 3]).ids
        step = cache.extend([sid], 3)
        out = cache.attend(0, q.mT.contiguous().mT, k, v, step, alibi_slopes=slopes, sink_logits=slopes)
        plain = [tensor.float().numpy() for tensor in (q, k, v)]
        expected = cache.attend(0, *plain, step, alibi_slopes=slopes.float(), sink_logits=slopes.float())
        cache.abandon(step)
    if bfloat16_as == "uint16":
        assert out.dtype == np.float32
        np.testing.assert_array_equal(out, expected)
    else:
        assert out.dtype.name == "bfloat16"
        np.testing.assert_array_equal(out, expected.astype(out.dtype))


def test_i02_the_simple_api_takes_and_returns_bfloat16_bit_for_bit(bfloat16_as):
    torch = pytest.importorskip("torch")
    given, ones = tensor_of_bits(EVERY_BFLOAT16)[7], torch.ones(64, 128, dtype=torch.bfloat16)  # NaN of either kind
    manager = BlockManager(2, 4, 64, 128, dtype="bfloat16")
    sequences = SequenceManager(manager)
    table = sequences.create_sequence("a")
    sequences.append_kv("a", 0, given, given)
    page = manager.pages[table.get_physical_page(0)]
    for stored in (page.keys, page.values):
        np.testing.assert_array_equal(np.array(stored[0]).view(np.uint16), EVERY_BFLOAT16[7])
    sequences.append_kv("a", 0, ones, ones)
    attention = PagedAttention(manager)
    out = attention.compute(ones[None], table, 1)
    assert out.dtype == torch.bfloat16 and (out == 1).all()
    mixed = attention.batch_compute([ones, ones.float()], [table, table], [1, 1])  # of both kinds
    assert mixed.dtype == torch.bfloat16 and (mixed == 1).all()


def test_i05_strides_of_axes_of_size_one_do_not_matter():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 2, 4), np.float32)
    odd = [np.lib.stride_tricks.as_strided(array, strides=(12345, *array.strides[1:])) for array in (q, k, v)]
    with cache_of() as cache:
        np.testing.assert_array_equal(attended(cache, *odd), attended(cache, q, k, v))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_i12_a_tensor_that_requires_grad_is_refused_by_name(dtype):
    torch = pytest.importorskip("torch")
    ones = torch.ones(1, 2, 4)
    wrong = torch.ones(1, 2, 4, dtype=getattr(torch, dtype), requires_grad=True)
    with cache_of() as cache, pytest.raises(TypeError, match=r"k is Tensor.*detach"):
        attended(cache, ones, wrong, ones)


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
