"""Faults of numerics that are promises to users: any shape, the same bits in any batch, 8 bits that are good enough."""

import numpy as np
import pytest

from pagedcache import CacheSpec, backends
from pagedcache.testing import make_scene

BACKEND = backends.get("numpy")


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "head_dim", "block_size"), [(7, 1, 59, 7), (12, 2, 80, 17), (28, 4, 96, 1)]
)
def test_r06_any_group_head_size_and_block_size(q_heads, kv_heads, head_dim, block_size):
    spec = CacheSpec(1, kv_heads, head_dim, block_size=block_size)
    make_scene(BACKEND, spec, [(1, 40), (5, 5), (3, 90)], q_heads).check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_r09_a_sequence_has_the_same_bits_alone_and_in_any_batch(dtype):
    scene = make_scene(BACKEND, CacheSpec(1, 2, 64, dtype=dtype), [(1, 500), (9, 40), (1, 77), (30, 300)], q_heads=6)
    alone = [scene.attend(order=[i]) for i in range(4)]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3], [2, 0, 2]):
        out, lse = scene.attend(order=order)
        assert out.tobytes() == b"".join(alone[i][0].tobytes() for i in order)
        assert lse.tobytes() == b"".join(alone[i][1].tobytes() for i in order)


@pytest.mark.parametrize(("dtype", "allowed"), [("int8", 0.01), ("float8_e4m3", 0.05)])
def test_r11_eight_bits_are_close_to_the_values_before_rounding(dtype, allowed):
    """Against attention over K and V as they were given, not as they were stored."""
    plain = make_scene(BACKEND, CacheSpec(1, 2, 64), [(1, 700), (40, 40)], q_heads=4)
    eight = make_scene(BACKEND, CacheSpec(1, 2, 64, dtype=dtype), [(1, 700), (40, 40)], q_heads=4)
    expected, out = plain.attend()[0], eight.attend()[0]
    assert 0 < np.sqrt(np.mean((out - expected) ** 2)) < allowed * np.abs(expected).max()


def test_r11_four_bits_are_refused_with_the_types_there_are():
    with pytest.raises(ValueError, match=r"int4.*int8"):
        CacheSpec(1, 2, 64, dtype="int4")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_s06_no_product_is_computed_in_half_precision(dtype, monkeypatch):
    """NumPy multiplies half-precision matrices two hundred times more slowly: every operand is float32 by then."""
    seen = []
    product = np.matmul

    def watched(a, b, *args, **options):
        seen.append((a.dtype.name, b.dtype.name))
        return product(a, b, *args, **options)

    scene = make_scene(BACKEND, CacheSpec(1, 2, 16, dtype=dtype), [(1, 300), (20, 40)], q_heads=4)
    for name in ("dot", "einsum", "inner", "tensordot", "vdot"):
        monkeypatch.setattr(np, name, None)  # no other way of multiplying is in use
    monkeypatch.setattr(np, "matmul", watched)
    BACKEND.attend(scene.storage, 0, scene.q().astype(np.float16), scene.step())
    assert set(seen) == {("float32", "float32")}
