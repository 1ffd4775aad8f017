"""Memory is what the spec says, holds what was written, and moves as it should."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pagedcache.backends.protocol import Backend, Storage
from pagedcache.errors import CacheClosed, UnsupportedByBackend, ViewsOutstanding
from pagedcache.spec import CacheSpec
from pagedcache.testing._bits import bits_of
from pagedcache.testing.oracle import rounded

__all__ = ["StorageChecks", "contents", "filled"]

SPEC = CacheSpec(2, 3, 5, v_head_dim=4, block_size=4)


def contents(backend: Backend, storage: Storage) -> npt.NDArray[np.uint8]:
    """Return every byte of the pool, the reserved block included."""
    return records(backend, storage, range(storage.num_blocks + 1))


def records(backend: Backend, storage: Storage, ids: Any, **options: Any) -> npt.NDArray[np.uint8]:
    """Return blocks as records, once they are there."""
    found = backend.read_blocks(storage, ids, **options)
    backend.synchronize()
    return np.asarray(found)


def filled(backend: Backend, spec: CacheSpec = SPEC, num_blocks: int = 6) -> Storage:
    """Return a pool with random K and V in every usable block, or skip the test."""
    try:
        backend.capabilities.require(spec)
    except UnsupportedByBackend as error:
        pytest.skip(str(error))
    storage = backend.allocate(spec, num_blocks)
    rng = np.random.default_rng(1)
    slots = np.arange(spec.block_size, (num_blocks + 1) * spec.block_size)
    for layer in range(spec.layers):
        k = rng.standard_normal((slots.size, spec.kv_heads, spec.head_dim), np.float32)
        v = rng.standard_normal((slots.size, spec.kv_heads, spec.v_head_dim), np.float32)
        backend.write(storage, layer, k, v, slots)
    backend.synchronize()
    return storage


class StorageChecks:
    """Allocation, writing, copies and records."""

    @pytest.mark.parametrize("layout", ["NHD", "HND"])
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float8_e4m3"])
    def test_allocation_is_what_the_spec_says(self, backend: Backend, dtype: str, layout: str) -> None:  # M10, W33
        spec = CacheSpec(3, 3, 80, v_head_dim=64, dtype=dtype, layout=layout, block_size=7)
        storage = filled(backend, spec)
        arrays = [array for plane in storage.export() for array in plane]
        assert sum(array.nbytes for array in arrays) == storage.nbytes == spec.pool_nbytes(6)
        k, v = storage.view(2)
        assert (k.shape, v.shape) == (spec.key_shape(6), spec.value_shape(6))
        assert k.dtype == v.dtype == spec.storage_dtype
        scales = storage.scales(2)
        assert (scales is not None) == spec.has_scales
        for array in scales or ():
            assert (array.shape, array.dtype) == (spec.scale_shape(6), np.float32)
        for array in arrays:
            assert array.flags.c_contiguous
            assert array.ctypes.data % 64 == 0
        assert not contents(backend, storage)[0].any(), "the reserved block must stay zero"

    def test_budget_is_kept(self, backend: Backend) -> None:  # M10
        budget = 100_000
        blocks = SPEC.blocks_for(budget)
        assert backend.allocate(SPEC, blocks).nbytes <= budget < SPEC.pool_nbytes(blocks + 1)

    @pytest.mark.parametrize("layout", ["NHD", "HND"])
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_write_rounds_and_puts_in_place(self, backend: Backend, dtype: str, layout: str) -> None:
        spec = CacheSpec(2, 3, 5, v_head_dim=4, dtype=dtype, layout=layout, block_size=4)
        storage = allocated(backend, spec)
        rng = np.random.default_rng(0)
        k, v = rng.standard_normal((3, 3, 5), np.float32), rng.standard_normal((3, 3, 4), np.float32)
        backend.write(storage, 1, k, v, np.array([9, 4, 27]))
        backend.synchronize()
        for array, expected in zip(storage.view(1), (k, v), strict=True):
            for token, (block, offset) in enumerate([(2, 1), (1, 0), (6, 3)]):
                stored = array[block, offset] if layout == "NHD" else array[block, :, offset]
                np.testing.assert_array_equal(as_float32(stored), rounded(expected[token], dtype))
            assert np.count_nonzero(as_float32(array)) == expected.size
        assert not contents(backend, storage)[:, 0].any(), "another layer was written"

    def test_inputs_of_every_form(self, backend: Backend) -> None:  # I04, I05, I06
        spec = CacheSpec(1, 3, 4, block_size=4)
        v = np.random.default_rng(0).standard_normal((5, 3, 4), np.float32)
        odd = np.frombuffer(b"?" + v.tobytes(), np.uint8)[1:].view(np.float32).reshape(v.shape)
        wide = np.random.default_rng(1).standard_normal((10, 3, 8), np.float32)
        locked = v.copy()
        locked.flags.writeable = False
        for form in (
            wide[::2, :, ::2], v[::-1], v[:, ::-1], np.asfortranarray(v), odd, locked, v.astype(">f4"),
            np.broadcast_to(v[:1], v.shape), v.transpose(1, 0, 2).copy().transpose(1, 0, 2), v.astype(np.float16),
        ):  # fmt: skip
            storage = allocated(backend, spec)
            backend.write(storage, 0, form, form, np.arange(5, 10, dtype=np.int64)[::-1])
            backend.synchronize()
            k = np.asarray(storage.view(0)[0]).reshape(-1, 3, 4)
            np.testing.assert_array_equal(k[5:10][::-1], form.astype(np.float32))

    @pytest.mark.parametrize("slots", [[5, 9], (5, 9), *(np.array([5, 9], dtype) for dtype in ("i4", "u4", ">i8"))])
    def test_slots_of_any_integer_type(self, backend: Backend, slots: Any) -> None:  # I07
        storage = allocated(backend, SPEC)
        backend.write(storage, 0, np.ones((2, 3, 5), np.float32), np.ones((2, 3, 4), np.float32), slots)
        backend.synchronize()
        assert storage.view(0)[0].reshape(-1, 15).sum(axis=1).nonzero()[0].tolist() == [5, 9]

    def test_write_of_nothing(self, backend: Backend) -> None:  # I12
        storage = filled(backend)
        before = contents(backend, storage)
        backend.write(storage, 0, np.empty((0, 3, 5), np.float32), np.empty((0, 3, 4), np.float32), [])
        backend.copy_blocks(storage, [])
        backend.copy_slots(storage, [], [])
        assert records(backend, storage, []).shape == (0, 2, SPEC.record_nbytes(0))
        np.testing.assert_array_equal(contents(backend, storage), before)

    @pytest.mark.parametrize("layout", ["NHD", "HND"])
    def test_copy_blocks(self, backend: Backend, layout: str) -> None:  # W34
        storage = filled(backend, CacheSpec(2, 3, 5, v_head_dim=4, block_size=4, layout=layout))
        before = contents(backend, storage)
        backend.copy_blocks(storage, np.array([[2, 5], [2, 6], [3, 1]], np.int32))
        after = contents(backend, storage)
        np.testing.assert_array_equal(after[[5, 6, 1]], before[[2, 2, 3]])
        np.testing.assert_array_equal(after[[0, 2, 3, 4]], before[[0, 2, 3, 4]])

    @pytest.mark.parametrize("layout", ["NHD", "HND"])
    def test_copy_slots_reads_before_it_writes(self, backend: Backend, layout: str) -> None:  # W34
        storage = filled(backend, CacheSpec(2, 3, 5, v_head_dim=4, block_size=4, layout=layout))
        before = [as_tokens(array, layout) for layer in range(2) for array in storage.view(layer)]
        backend.copy_slots(storage, np.array([5, 9, 6, 6]), np.array([9, 5, 10, 27]))
        backend.synchronize()
        after = [as_tokens(array, layout) for layer in range(2) for array in storage.view(layer)]
        for old, new in zip(before, after, strict=True):
            expected = old.copy()
            expected[[9, 5, 10, 27]] = old[[5, 9, 6, 6]]
            np.testing.assert_array_equal(new, expected)

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_records(self, backend: Backend, dtype: str) -> None:
        nhd, hnd = (
            CacheSpec(2, 3, 5, v_head_dim=4, dtype=dtype, block_size=4, layout=layout) for layout in ("NHD", "HND")
        )
        storage = filled(backend, nhd)
        k, v = storage.view(1)
        three = records(backend, storage, [4, 0, 2])
        assert (three.dtype, three.shape) == (np.dtype(np.uint8), (3, 2, nhd.record_nbytes(1)))
        assert bits_of(three[0, 1]) == bits_of(k[4], v[4])
        assert not three[1].any()
        np.testing.assert_array_equal(records(backend, storage, [4, 0, 2], layers=[1]), three[:, 1:])
        into = np.zeros_like(three)
        assert backend.read_blocks(storage, [4, 0, 2], into=into) is into
        backend.synchronize()
        np.testing.assert_array_equal(into, three)

        other = allocated(backend, hnd)
        backend.write_blocks(other, [1, 6], three[[0, 2]])
        np.testing.assert_array_equal(records(backend, other, [1, 6]), three[[0, 2]])
        np.testing.assert_array_equal(as_float32(other.view(1)[0][1].swapaxes(0, 1)), as_float32(k[4]))
        backend.write_blocks(other, [2], three[:1, :1], layers=[1])
        np.testing.assert_array_equal(records(backend, other, [2])[0, 1], three[0, 0])
        assert not contents(backend, other)[[0, 3, 4, 5]].any()

    def test_callers_buffers(self, backend: Backend) -> None:
        buffers = buffers_for(SPEC, 6, fill=7)
        storage = backend.allocate(SPEC, 6, buffers=buffers)
        backend.write(storage, 1, np.ones((1, 3, 5), np.float32), np.ones((1, 3, 4), np.float32), [9])
        backend.synchronize()
        assert (buffers[1][0][2, 1] == 1).all()
        assert (buffers[1][0][1] == 7).all()
        assert not buffers[0][0][0].any(), "the reserved block must be zero"
        others = buffers_for(SPEC, 6, fill=3)
        storage.rebind(others)
        assert (storage.view(1)[1][4] == 3).all()
        with pytest.raises(ValueError, match="own"):
            backend.allocate(SPEC, 6).rebind(others)

    def test_close_refuses_while_arrays_are_out(self, backend: Backend) -> None:
        for storage in (filled(backend), backend.allocate(SPEC, 6, buffers=buffers_for(SPEC, 6, fill=0))):
            kept = storage.export()[1][0][2:4, ::2].T
            with pytest.raises(ViewsOutstanding):
                storage.close()
            assert records(backend, storage, [1]).shape[0] == 1
            del kept
            storage.close()
            storage.close()
            with pytest.raises(CacheClosed):
                storage.view(0)
            with pytest.raises(CacheClosed):
                backend.read_blocks(storage, [1])

    def test_export_is_read_only_unless_asked(self, backend: Backend) -> None:  # I04
        storage = filled(backend)
        shared = storage.export()[0][0]
        with pytest.raises(ValueError, match="read-only"):
            shared[1] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            shared.flags.writeable = True
        storage.export(writable=True)[0][0][1] = 5
        assert (shared[1] == 5).all()

    def test_fence(self, backend: Backend) -> None:
        storage = filled(backend)
        backend.synchronize()
        first = backend.fence()
        backend.copy_blocks(storage, [(1, 2)])
        second = backend.fence()
        backend.synchronize()
        assert isinstance(first, int)
        if backend.capabilities.synchronous:
            assert first == second == 0
        else:
            assert 0 <= first <= second < 2**63


def allocated(backend: Backend, spec: CacheSpec, num_blocks: int = 6) -> Storage:
    """Return an empty pool, or skip the test."""
    try:
        backend.capabilities.require(spec)
    except UnsupportedByBackend as error:
        pytest.skip(str(error))
    return backend.allocate(spec, num_blocks)


def buffers_for(spec: CacheSpec, num_blocks: int, fill: float) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Return arrays as a caller could hand them in."""
    return [
        (
            np.full(spec.key_shape(num_blocks), fill, spec.storage_dtype),
            np.full(spec.value_shape(num_blocks), fill, spec.storage_dtype),
        )
        for _ in range(spec.planes)
    ]


def as_float32(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Widen stored values, bfloat16 and fp8 that are kept as unsigned integers included."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    if array.dtype == np.uint8:
        exponent, mantissa = (array & 0x7F) >> 3, (array & 7) / np.float32(8)
        magnitude = np.where(exponent == 0, np.ldexp(mantissa, -6), np.ldexp(1 + mantissa, exponent.astype(int) - 7))
        return np.where(array & 0x80, -magnitude, magnitude).astype(np.float32)
    return array.astype(np.float32)


def as_tokens(array: npt.NDArray[Any], layout: str) -> npt.NDArray[Any]:
    """Return a copy as [slots, kv_heads, width]."""
    array = array if layout == "NHD" else array.swapaxes(1, 2)
    return array.reshape(-1, *array.shape[2:]).copy()
