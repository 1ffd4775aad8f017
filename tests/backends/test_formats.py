"""float16 and bfloat16 are widened exactly and rounded to nearest even."""

import numpy as np
import pytest

from pagedcache.backends.reference._formats import narrowed, numbers, widened

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
