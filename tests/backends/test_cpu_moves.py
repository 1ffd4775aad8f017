"""Backend "cpu": blocks, slots and records go the same way as in NumPy, byte for byte, in both layouts."""

import numpy as np
import pytest

from pagedcache import CacheSpec
from pagedcache.backends.cpu import CpuBackend
from pagedcache.backends.host import moves

BLOCKS = 40
each_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])


@pytest.fixture(params=["NHD", "HND"])
def layout(request):
    return request.param


def pool(layout, dtype):
    """A backend and its storage full of numbers; K and V differ in size."""
    backend = CpuBackend(threads=2)
    spec = CacheSpec(3, kv_heads=3, head_dim=5, v_head_dim=4, dtype=dtype, block_size=4, layout=layout)
    storage = backend.allocate(spec, BLOCKS)
    rng = np.random.default_rng(0)
    for plane in storage.planes:
        for array in plane:
            bits = array.reshape(-1).view(np.uint8)
            bits[...] = rng.integers(0, 255, bits.size, np.uint8)
    return backend, storage


def contents(storage):
    return [array.tobytes() for plane in storage.planes for array in plane]


@each_dtype
@pytest.mark.parametrize("overlap", [False, True])
def test_moves_are_those_of_numpy(layout, dtype, overlap):
    (backend, storage), (_, other) = pool(layout, dtype), pool(layout, dtype)
    order = np.random.default_rng(1).permutation(BLOCKS) + 1
    pairs = order[:30].reshape(15, 2).astype(np.int32)
    slots = np.random.default_rng(2).permutation(np.arange(4, 4 * BLOCKS + 4))
    src, dst = slots[:50], slots[25:75] if overlap else slots[50:100]
    backend.copy_blocks(storage, pairs)
    moves.copy_blocks(other, pairs)
    assert contents(storage) == contents(other)
    backend.copy_slots(storage, src, dst)
    moves.copy_slots(other, src, dst)
    assert contents(storage) == contents(other)
    records = backend.read_blocks(storage, order[:9], [2, 0])
    np.testing.assert_array_equal(records, moves.read_blocks(other, order[:9], [2, 0], None))
    backend.write_blocks(storage, order[9:18], records, [1, 2])
    moves.write_blocks(other, order[9:18], records, [1, 2])
    assert contents(storage) == contents(other)


@each_dtype
def test_records_may_lie_anyhow(layout, dtype):
    backend, storage = pool(layout, dtype)
    ids = [3, 1, 7]
    expected = backend.read_blocks(storage, ids)
    wide = np.zeros((3, 3, 2 * expected.shape[2]), np.uint8)
    backend.read_blocks(storage, ids, into=wide[..., ::2])
    np.testing.assert_array_equal(wide[..., ::2], expected)
    assert not wide[..., 1::2].any()
    backend.write_blocks(storage, [10, 11, 12], wide[..., ::2])
    backend.write_blocks(storage, [20, 21, 22], expected[::-1])
    np.testing.assert_array_equal(backend.read_blocks(storage, [10, 11, 12]), expected)
    np.testing.assert_array_equal(backend.read_blocks(storage, [22, 21, 20]), expected)


def test_records_may_be_memory_of_the_pool():
    """A caller's buffer that is a pool's at the same time: copied first."""
    backend, storage = pool("NHD", "float32")
    inside = storage.planes[0][0][1:10].reshape(-1).view(np.uint8)
    size = storage.spec.record_nbytes(0)
    records = inside[: 2 * size].reshape(2, 1, size)
    expected = records.copy()
    backend.write_blocks(storage, [1, 2], records, [0])
    np.testing.assert_array_equal(backend.read_blocks(storage, [1, 2], [0]), expected)


def test_many_blocks_are_copied_by_several_threads(layout):
    backend = CpuBackend(threads=4)
    spec = CacheSpec(1, kv_heads=8, head_dim=64, block_size=16, layout=layout)
    storage = backend.allocate(spec, 512)
    k = np.random.default_rng(0).standard_normal((256 * 16, 8, 64), np.float32)
    backend.write(storage, 0, k, -k, np.arange(16, 16 + len(k)))
    backend.copy_blocks(storage, np.stack([np.arange(1, 257), np.arange(257, 513)], axis=1))
    records = backend.read_blocks(storage, np.arange(1, 513))
    np.testing.assert_array_equal(records[:256], records[256:])
    stored = records[:256, 0].view(np.float32).reshape(256, 2, -1)
    np.testing.assert_array_equal(stored[:, 0].ravel(), k.ravel())
    np.testing.assert_array_equal(stored[:, 1].ravel(), -k.ravel())
