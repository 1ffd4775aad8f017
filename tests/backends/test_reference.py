"""Backend "numpy" passes the suite, and keeps the promises that are its own."""

from types import SimpleNamespace

import numpy as np
import pytest

from pagedcache import backends
from pagedcache.errors import UnsupportedByBackend
from pagedcache.spec import CacheSpec, LayerGroup
from pagedcache.testing import BackendConformance, make_scene, make_step

BACKEND = backends.get("numpy")


class TestNumpy(BackendConformance):
    @pytest.fixture
    def backend(self):
        return BACKEND


def test_what_is_lacking_is_refused_at_allocation():
    spec = CacheSpec(2, 2, 8, groups=[LayerGroup(1), LayerGroup(1, kv_heads=1)])
    with pytest.raises(UnsupportedByBackend, match=r"mixed_groups \(has alibi, mask, .*window\)"):
        BACKEND.allocate(spec, 4)


def test_layers_of_equal_groups_share_planes():
    spec = CacheSpec(5, 2, 8, groups=[LayerGroup(3), LayerGroup(2)])
    storage = BACKEND.allocate(spec, 4)
    assert len(storage.export()) == 3
    assert np.shares_memory(storage.view(1)[0], storage.view(4)[0])


def test_a_layer_reads_the_tables_of_its_own_group():
    spec = CacheSpec(3, 2, 8, groups=[LayerGroup(2), LayerGroup(1)])
    first = make_scene(BACKEND, spec, [(1, 35), (4, 40)], q_heads=4)
    step, other = first.step(), first.step([1, 0])
    both = SimpleNamespace(**{name: getattr(step, name) for name in dir(step) if not name.startswith("_")})
    both.groups = (step, other)
    swapped = BACKEND.attend(first.storage, 2, first.q(), both)
    expected = make_step(first.tables[::-1], first.lengths, 16)
    np.testing.assert_array_equal(swapped[:1], BACKEND.attend(first.storage, 0, first.q(), expected)[:1])


@pytest.mark.parametrize(("given", "wanted"), [(np.float32, np.float32), (np.float16, np.float16), (">f4", np.float32)])
def test_out_has_the_dtype_of_q(given, wanted):
    scene = make_scene(BACKEND, CacheSpec(1, 2, 8), [(2, 20)], q_heads=4)
    out = BACKEND.attend(scene.storage, 0, scene.q().astype(given), scene.step())
    assert out.dtype == wanted
    assert out.dtype.isnative


def test_bfloat16_queries_and_results():  # I02
    ml_dtypes = pytest.importorskip("ml_dtypes")
    scene = make_scene(BACKEND, CacheSpec(1, 2, 8, dtype="bfloat16"), [(2, 20)], q_heads=4)
    q = scene.q().astype(ml_dtypes.bfloat16)
    out = BACKEND.attend(scene.storage, 0, q, scene.step())
    from_bits = BACKEND.attend(scene.storage, 0, q.view(np.uint16), scene.step())
    assert (out.dtype, from_bits.dtype) == (ml_dtypes.bfloat16, np.float32)
    np.testing.assert_array_equal(from_bits.astype(ml_dtypes.bfloat16), out)
    merged, _ = BACKEND.merge(out[None], np.zeros((1, 2, 4), np.float32))
    np.testing.assert_array_equal(merged, out)
    with pytest.raises(TypeError, match="q is uint16"):
        BACKEND.attend(BACKEND.allocate(CacheSpec(1, 2, 8), 9), 0, q.view(np.uint16), scene.step())


def test_every_bfloat16_crosses_bit_for_bit():  # I02
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(2**16, dtype=np.uint16).reshape(16, 1, -1)
    spec = CacheSpec(1, 1, bits.shape[2], dtype="bfloat16")
    for form in (bits, bits.view(ml_dtypes.bfloat16)):
        storage = BACKEND.allocate(spec, 1)
        BACKEND.write(storage, 0, form, form, np.arange(16, 32))
        np.testing.assert_array_equal(storage.view(0)[0][1].view(np.uint16), bits)


def test_a_padded_row_has_the_bits_of_the_plain_one():
    spec = CacheSpec(1, 3, 64, block_size=4)
    plain = make_scene(BACKEND, spec, [(9, 50)], q_heads=9)
    padded = make_scene(BACKEND, spec, [(9, 56)], q_heads=9, pads=[6])
    BACKEND.write(padded.storage, 0, plain.keys[0], plain.values[0], padded.slots(0)[6:])
    padded.queries = plain.queries
    assert [array.tobytes() for array in plain.attend()] == [array.tobytes() for array in padded.attend()]


def test_long_sequences_in_several_stretches_and_panels():
    spec = CacheSpec(1, 8, 32, dtype="float16")
    make_scene(BACKEND, spec, [(1, 9000), (900, 1000), (2, 5000)], q_heads=8).check()
