"""int8 and fp8 with scales: the bits that are stored, and that the scales go where the values go."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pagedcache.backends.protocol import Backend, Storage
from pagedcache.spec import CacheSpec
from pagedcache.testing._bits import bits_of
from pagedcache.testing._mixtures import scene_or_skip
from pagedcache.testing._rounding import quantised, rounded
from pagedcache.testing._storage_checks import allocated, as_float32, as_tokens, contents, filled
from pagedcache.testing.scenes import make_step

__all__ = ["QuantisedChecks"]

EIGHT_BIT = pytest.mark.parametrize("dtype", ["int8", "float8_e4m3"])
LAYOUTS = pytest.mark.parametrize("layout", ["NHD", "HND"])
WIDTH = 6


def spec_of(dtype: str, layout: str = "NHD", width: int = WIDTH) -> CacheSpec:
    return CacheSpec(2, 3, width, v_head_dim=4, dtype=dtype, layout=layout, block_size=4)


def keys_and_scales(storage: Storage, layer: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """What is stored as K of a layer, not yet scaled, [slots, heads, width]; and its scales, [slots, heads]."""
    layout, scales = storage.spec.layout, storage.scales(layer)
    assert scales is not None
    by_token = scales[0] if layout == "NHD" else scales[0].swapaxes(1, 2)
    return as_float32(as_tokens(storage.view(layer)[0], layout)), by_token.reshape(-1, storage.spec.kv_heads).copy()


def difficult(width: int) -> npt.NDArray[np.float32]:
    """Rows of every kind: zeros, ties, subnormals, very large and very small numbers, [tokens, 3, width]."""
    rng = np.random.default_rng(0)
    rows = [np.zeros(width), -np.zeros(width), np.full(width, 1e4), np.full(width, -3e38), np.full(width, 1e-45)]
    rows += [np.full(width, 2.0**-140), np.resize([127, 0.5, 1.5, -2.5, 126.5, -0.5], width)]
    rows += [np.resize([448, 17, 19, -21, 0.0009765625, 0.0029296875], width)]  # ties of e4m3, subnormal ones too
    rows += [np.resize([1e4, 1e-3], width), rng.uniform(5, 6, width)]
    rows += list(rng.standard_normal((40, width)) * 10.0 ** rng.integers(-30, 30, (40, 1)))
    rows += [np.ones(width)] * (-len(rows) % 3)
    return np.array(rows, np.float32).reshape(-1, 3, width)


class QuantisedChecks:
    """Storage with scales; attention over it is among the other checks, with its dtypes."""

    @EIGHT_BIT
    @LAYOUTS
    @pytest.mark.parametrize("width", [1, 3, 6, 59, 80, 129])
    def test_stored_bits(self, backend: Backend, dtype: str, layout: str, width: int) -> None:  # N06, N08
        values = difficult(width)
        storage = allocated(backend, spec_of(dtype, layout, width))
        slots = np.random.default_rng(1).permutation(np.arange(4, 28))[: len(values)]
        backend.write(storage, 1, values, values[..., :1].repeat(4, axis=2), slots)
        backend.synchronize()
        codes, scales = keys_and_scales(storage, 1)
        expected_codes, expected_scales = quantised(values, dtype)
        np.testing.assert_array_equal(scales[slots].view(np.uint32), expected_scales.view(np.uint32))
        np.testing.assert_array_equal(codes[slots], expected_codes)
        assert not contents(backend, storage)[0].any(), "the reserved block must stay zero"
        assert not contents(backend, storage)[:, 0].any(), "another layer was written"

    @EIGHT_BIT
    def test_scales_are_usable(self, backend: Backend, dtype: str) -> None:  # N06
        storage = allocated(backend, spec_of(dtype))
        values = difficult(WIDTH)
        backend.write(storage, 0, values, values[..., :4], np.arange(4, 4 + len(values)))
        backend.synchronize()
        for scales in storage.scales(0) or ():
            written = np.asarray(scales).reshape(-1, 3)[4 : 4 + len(values)]
            assert np.isfinite(written).all()
            assert (written > 0).all()

    @EIGHT_BIT
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite_is_refused_or_stays_alone(self, backend: Backend, dtype: str, bad: float) -> None:
        storage = filled(backend, spec_of(dtype))
        before = contents(backend, storage)
        k, v = np.ones((2, 3, WIDTH), np.float32), np.ones((2, 3, 4), np.float32)
        k[1, 2, 0] = bad
        try:
            backend.write(storage, 0, k, v, [5, 9])
            backend.synchronize()
        except ValueError:
            np.testing.assert_array_equal(contents(backend, storage), before)
        else:
            codes, scales = keys_and_scales(storage, 0)
            assert np.isfinite(scales[[5, 9]]).all()
            np.testing.assert_array_equal((codes * scales[..., None])[5], np.ones((3, WIDTH)))

    @EIGHT_BIT
    @LAYOUTS
    def test_scales_move_with_the_values(self, backend: Backend, dtype: str, layout: str) -> None:  # N06
        storage = filled(backend, spec_of(dtype, layout))
        before = contents(backend, storage)
        backend.copy_blocks(storage, np.array([[2, 5], [3, 1]], np.int32))
        after = contents(backend, storage)
        np.testing.assert_array_equal(after[[5, 1, 0, 2, 3, 4, 6]], before[[2, 3, 0, 2, 3, 4, 6]])

        tokens = [keys_and_scales(storage, layer) for layer in range(2)]
        backend.copy_slots(storage, np.array([5, 9, 6, 6]), np.array([9, 5, 10, 27]))
        backend.synchronize()
        for layer, (codes, scales) in enumerate(tokens):
            for old, new in zip((codes, scales), keys_and_scales(storage, layer), strict=True):
                expected = old.copy()
                expected[[9, 5, 10, 27]] = old[[5, 9, 6, 6]]
                np.testing.assert_array_equal(new, expected)

    @EIGHT_BIT
    def test_records_of_both_layouts_are_the_same(self, backend: Backend, dtype: str) -> None:
        nhd, hnd = filled(backend, spec_of(dtype, "NHD")), allocated(backend, spec_of(dtype, "HND"))
        records = contents(backend, nhd)
        k, v = nhd.view(1)
        pieces = (k, v, *(nhd.scales(1) or ()))
        assert bits_of(records[4, 1]) == bits_of(*(array[4] for array in pieces))
        backend.write_blocks(hnd, np.arange(1, 7), records[1:])
        np.testing.assert_array_equal(contents(backend, hnd), records)
        for left, right in zip(keys_and_scales(nhd, 0), keys_and_scales(hnd, 0), strict=True):
            np.testing.assert_array_equal(left, right)

    @EIGHT_BIT
    def test_callers_buffers_bring_their_scales(self, backend: Backend, dtype: str) -> None:
        own = scene_or_skip(backend, spec_of(dtype), [(1, 20)], q_heads=3)
        expected, _ = own.attend()
        buffers: list[tuple[Any, ...]] = [tuple(array.copy() for array in plane) for plane in own.storage.export()]
        own.storage = backend.allocate(own.spec, own.storage.num_blocks, buffers=buffers)
        np.testing.assert_array_equal(own.attend()[0], expected)
        own.storage.rebind([tuple(np.zeros_like(array) for array in plane) for plane in buffers])
        assert not own.attend()[0].any()
        own.storage.rebind(buffers)
        np.testing.assert_array_equal(own.attend()[0], expected)

    @EIGHT_BIT
    @LAYOUTS
    def test_every_value_is_read_as_it_is_stored(self, backend: Backend, dtype: str, layout: str) -> None:  # N06
        values = difficult(WIDTH)
        tokens = len(values)
        storage = allocated(backend, CacheSpec(1, 3, WIDTH, dtype=dtype, layout=layout, block_size=1), tokens)
        backend.write(storage, 0, np.ones_like(values), values, np.arange(1, tokens + 1))
        step = make_step([[block + 1] for block in range(tokens)], [(1, 1)] * tokens, 1)
        out = backend.attend(storage, 0, np.ones((tokens, 3, WIDTH), np.float32), step)  # each sees itself alone
        backend.synchronize()
        np.testing.assert_allclose(np.asarray(out), rounded(values, dtype), rtol=1e-6)

    @EIGHT_BIT
    def test_large_and_small_heads_side_by_side(self, backend: Backend, dtype: str) -> None:  # N06, N08
        scene = scene_or_skip(backend, CacheSpec(1, 2, 59, dtype=dtype, block_size=4), [(1, 30), (4, 9)], q_heads=4)
        for i in range(2):
            v = np.random.default_rng(i).uniform(5, 6, scene.values[i].shape).astype(np.float32)
            v[:, 1] *= 1000
            backend.write(scene.storage, 0, scene.keys[i], v, scene.slots(i))
        out, _ = scene.attend()
        step = {"int8": 6 / 127 / 2, "float8_e4m3": 6 / 16}[dtype]  # half a step of the coarsest number
        assert (np.abs(out[:, :2] - 5.5) <= 0.5 + step).all()
        assert (np.abs(out[:, 2:] / 1000 - 5.5) <= 0.5 + step).all()
