"""float16, bfloat16 and fp8 are widened exactly and rounded to nearest even."""

import numpy as np
import pytest

from pagedcache.backends.host.formats import narrowed, numbers, widened
from pagedcache.backends.host.quantised import quantised

EVERY = np.arange(2**16, dtype=np.uint16)
BFLOAT16 = np.dtype(np.uint16)


def same(left, right):
    """Equality of bits, where any NaN equals any other."""
    np.testing.assert_array_equal(np.isnan(left), np.isnan(right))
    keep = ~np.isnan(left)
    np.testing.assert_array_equal(left[keep].view(np.uint32), right[keep].view(np.uint32))


def test_every_float16_is_widened_exactly():
    halves = EVERY.view(np.float16)
    same(widened(halves), halves.astype(np.float32))
    finite = halves[np.isfinite(halves)]
    same(widened(finite), finite.astype(np.float32))


def test_every_bfloat16_is_widened_and_narrowed_exactly():
    np.testing.assert_array_equal(widened(EVERY).view(np.uint32), EVERY.astype(np.uint32) << 16)
    back = narrowed(widened(EVERY), BFLOAT16)
    quiet = np.where(np.isnan(widened(EVERY)), EVERY | 0x40, EVERY)
    np.testing.assert_array_equal(back, quiet)


def test_bfloat16_rounding_is_that_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
    ties = (EVERY.astype(np.uint32) << 16) + 0x8000
    values = np.concatenate([bits, ties, ties + 1, ties - 1]).view(np.float32)
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(narrowed(values, BFLOAT16), expected)


@pytest.mark.parametrize("value", [70000.0, -1e30])
def test_overflow_is_infinite_without_a_warning(value):
    assert np.isinf(narrowed(np.array([value], np.float32), np.dtype(np.float16)))[0]


def test_nan_with_a_low_payload_stays_nan():
    low = np.array([0x7F800001, 0xFF80FFFF], np.uint32).view(np.float32)
    assert np.isnan(widened(narrowed(low, BFLOAT16))).all()


def test_strided_bfloat16_rounds_like_contiguous():
    values = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    np.testing.assert_array_equal(narrowed(values[::2, ::-1], BFLOAT16), narrowed(values[::2, ::-1].copy(), BFLOAT16))


def test_what_numpy_cannot_read_is_a_type_error_of_ours():  # I12
    class Grad:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("call detach() first")

    with pytest.raises(TypeError, match=r"k is Grad.*detach"):
        numbers("k", Grad(), "float32")


def test_every_byte_as_e4m3_is_that_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    every = np.arange(256, dtype=np.uint8)
    same(widened(every), every.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def test_e4m3_rounding_is_that_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numbers = widened(np.arange(127, dtype=np.uint8))
    ties = (numbers[1:] + numbers[:-1]) / 2
    tiny = np.float32([0, 2**-149, 2**-11, 2**-10, 2**-9])
    around = [np.nextafter(ties, np.float32(to)) for to in (0, 448)]
    values = np.concatenate([tiny, numbers, ties, *around, np.random.default_rng(0).uniform(0, 448, 10_000)])
    values = np.concatenate([values, -values]).astype(np.float32)
    # The largest of a row has the scale 1, so that nothing is scaled.
    rows = np.concatenate([values, np.full(len(values), 448, np.float32)]).reshape(2, -1).T.copy()
    codes, scales = quantised("k", rows[:, None], "float8_e4m3")
    assert (scales == 1).all()
    np.testing.assert_array_equal(codes[:, 0, 0], values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def test_quantised_stays_within_the_range():
    rows = np.float32([[[3e-45, -1e-45]], [[3e38, -3.4e38]], [[1e-38, 1e-40]]])
    for dtype, largest in (("int8", 127), ("float8_e4m3", 448)):
        codes, scales = quantised("k", rows, dtype)
        assert (np.abs(widened(codes.view(np.uint8) if dtype != "int8" else codes)) <= largest).all()
        assert (np.isfinite(scales) & (scales > 0)).all()
