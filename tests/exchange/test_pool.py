"""Pools in other libraries' memory, and other libraries' arrays over pools."""

import gc
import weakref

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache, ViewsOutstanding
from pagedcache.exchange import as_numpy, export
from pagedcache.tiers import HostTier

BLOCKS = 6
DTYPES = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16", "float8_e4m3": "float8_e4m3fn"}
DTYPES["int8"] = "int8"


def spec_of(dtype="float32", **options):
    return CacheSpec(2, 2, 16, block_size=4, dtype=dtype, **options)


def pool_of(spec, aligned, foreign):
    """Buffers of another library, and the same memory as `Exported`."""
    shapes = [spec.key_shape(BLOCKS), spec.value_shape(BLOCKS)]
    planes = [[aligned(shape, DTYPES[spec.dtype]) for shape in shapes] for _ in range(spec.planes)]
    if spec.has_scales:
        planes = [[*plane, *(aligned(spec.scale_shape(BLOCKS), "float32") for _ in "kv")] for plane in planes]
    return [[foreign(each) for each in plane] for plane in planes], planes


def filled(cache, tokens):
    """A sequence whose K and V are random, and the queries' answers."""
    rng = np.random.default_rng(0)
    (sid,) = cache.admit([tokens]).ids
    step = cache.extend([sid], len(tokens))
    outs = [cache.attend(layer, *rng.standard_normal((3, len(tokens), 2, 16), np.float32), step) for layer in range(2)]
    cache.commit(step, tokens)
    return sid, np.stack(outs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pool_in_other_libraries_memory_is_as_good_as_our_own(writable_foreign, aligned, dtype):
    spec = spec_of(dtype)
    buffers, planes = pool_of(spec, aligned, writable_foreign)
    with KVCache(spec, num_blocks=BLOCKS, storage=buffers) as cache, KVCache(spec, num_blocks=BLOCKS) as own:
        (_, outs), (_, expected) = filled(cache, [1] * 9), filled(own, [1] * 9)
        np.testing.assert_array_equal(outs, expected)
        for plane, same in zip(planes, own.storage.export(), strict=True):
            assert [each.array.tobytes() for each in plane] == [array.tobytes() for array in same]
        del same


class Counted:
    """Counts how often it is asked for its memory."""

    def __init__(self, shared):
        self.shared, self.asked = shared, 0

    def __dlpack_device__(self):
        return self.shared.__dlpack_device__()

    def __dlpack__(self, **options):
        self.asked += 1
        return self.shared.__dlpack__(**options)


def test_a_pool_is_exchanged_once(aligned):
    buffers, _ = pool_of(spec_of(), aligned, Counted)
    with KVCache(spec_of(), num_blocks=BLOCKS, storage=buffers) as cache:
        sid, _ = filled(cache, [1] * 9)
        cache.swap_out([sid])
        cache.swap_in([sid])
    assert [each.asked for plane in buffers for each in plane] == [1, 1, 1, 1]


def test_its_owner_lives_until_the_cache_is_closed(aligned, writable_foreign):
    buffers, planes = pool_of(spec_of(), aligned, writable_foreign)
    gone = weakref.ref(planes[1][0].array.base)
    cache = KVCache(spec_of(), num_blocks=BLOCKS, storage=buffers)
    del buffers, planes
    gc.collect()
    filled(cache, [1] * 9)
    assert gone() is not None
    cache.close()
    gc.collect()
    assert gone() is None


def test_swaps_and_records_of_such_a_pool(aligned, writable_foreign):
    buffers, _ = pool_of(spec_of("bfloat16"), aligned, writable_foreign)
    with KVCache(spec_of("bfloat16"), num_blocks=BLOCKS, storage=buffers) as cache:
        sid, _ = filled(cache, [1] * 9)
        blocks = cache.sequence(sid).block_table
        before = cache.backend.read_blocks(cache.storage, blocks)
        assert before.any()
        cache.swap_out([sid])
        cache.backend.write_blocks(cache.storage, blocks, np.zeros_like(before))
        cache.swap_in([sid])
        after = cache.backend.read_blocks(cache.storage, cache.sequence(sid).block_table)
    np.testing.assert_array_equal(after, before)


def test_tiers_of_such_a_pool(aligned, writable_foreign):
    spec = spec_of(fingerprint=b"exchange")
    buffers, _ = pool_of(spec, aligned, writable_foreign)
    with KVCache(spec, num_blocks=BLOCKS, storage=buffers, tiers=[HostTier("1 MiB")]) as cache:
        sid, _ = filled(cache, list(range(9)))
        before = cache.backend.read_blocks(cache.storage, cache.sequence(sid).block_table[:2])
        cache.release([sid])
        for other in (50, 70, 90):  # evicts all of it
            cache.release([filled(cache, list(range(other, other + 9)))[0]])
        cache.flush(60)
        assert cache.prefetch([list(range(9))]).wait(60)
        (sid,) = cache.admit([list(range(9))]).ids
        after = cache.backend.read_blocks(cache.storage, cache.sequence(sid).block_table[:2])
    np.testing.assert_array_equal(after, before)


def test_what_may_not_be_written_is_no_pool(aligned):
    def locked(shared):
        return export(shared.array, writable=False)

    buffers, planes = pool_of(spec_of(), aligned, locked)
    planes[0][0].array[...] = 1
    with pytest.raises(ValueError, match=r"K of buffers\[0\] has strides .* and is read-only"):
        KVCache(spec_of(), num_blocks=BLOCKS, storage=buffers)
    assert planes[0][0].array.all()  # the zero block, too


def test_arrays_of_jax_are_no_pool(aligned):
    jax = pytest.importorskip("jax")
    buffers, _ = pool_of(spec_of(), aligned, jax.dlpack.from_dlpack)
    with pytest.raises(ValueError, match="read-only"):
        KVCache(spec_of(), num_blocks=BLOCKS, storage=buffers)


def test_a_mapped_file_is_a_pool(tmp_path):
    spec = spec_of()
    shapes = [spec.key_shape(BLOCKS), spec.value_shape(BLOCKS)]
    paths = [[tmp_path / f"{layer}{kind}" for kind in "kv"] for layer in range(2)]
    buffers = [[np.memmap(path, "f4", "w+", shape=s) for path, s in zip(row, shapes, strict=True)] for row in paths]
    with KVCache(spec, num_blocks=BLOCKS, storage=buffers) as cache:
        filled(cache, [1] * 9)
        expected = [array.tobytes() for plane in cache.storage.export() for array in plane]
    del buffers
    assert [path.read_bytes() for row in paths for path in row] == expected


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_blocks", [1, BLOCKS, 3000])
def test_arrays_of_our_own_pools_are_compact_and_aligned(dtype, layout, num_blocks):
    with KVCache(spec_of(dtype, layout=layout), num_blocks=num_blocks) as cache:
        for array in (array for plane in cache.storage.export() for array in plane):
            assert array.flags.c_contiguous and array.ctypes.data % 64 == 0
        del array


@pytest.mark.parametrize("dtype", DTYPES)
def test_close_refuses_while_another_library_sees_the_pool(foreign, dtype):
    cache = KVCache(spec_of(dtype), num_blocks=BLOCKS)
    filled(cache, [1] * 9)
    shared = export(cache.storage.view(0)[0], DTYPES[dtype])
    seen = foreign(shared)
    taken = as_numpy(seen)
    assert taken.ctypes.data == shared.data_ptr and taken.tobytes() == shared.array.tobytes()
    del shared, taken
    gc.collect()
    with pytest.raises(ViewsOutstanding):
        cache.close()
    del seen
    gc.collect()
    cache.close()


def test_i04_views_for_readers_stay_read_only():
    with KVCache(spec_of(), num_blocks=BLOCKS) as cache:
        shared = export(cache.storage.export()[0][0])
        assert shared.readonly and not np.from_dlpack(shared).flags.writeable
        with pytest.raises(BufferError, match="read-only"):
            shared.__dlpack__()
        del shared
