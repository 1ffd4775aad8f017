"""HostStorage: what it keeps for each dtype, and the hook of its subclasses."""

import numpy as np
import pytest

from pagedcache.backends.host import HostStorage
from pagedcache.errors import CacheClosed, ViewsOutstanding
from pagedcache.spec import CacheSpec


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3"])
def test_storage_of_types_with_scales(dtype, layout):  # M10
    spec = CacheSpec(3, 3, 80, v_head_dim=64, dtype=dtype, layout=layout, block_size=7)
    storage = HostStorage(spec, spec.blocks_for("1 MiB"))
    plane = storage.export()[2]
    assert [array.nbytes * 3 for array in plane] == [
        (storage.num_blocks + 1) * 7 * 3 * 3 * width for width in (80, 64, 4, 4)
    ]
    assert sum(array.nbytes for plane in storage.export() for array in plane) == storage.nbytes <= 2**20
    assert [array.shape for array in storage.scales(2)] == [spec.scale_shape(storage.num_blocks)] * 2


class WithAddresses(HostStorage):
    """Keeps what a kernel would be given."""

    def _changed(self):
        self.addresses = [array.ctypes.data for plane in self._planes for array in plane]


SPEC = CacheSpec(2, 1, 4)


def buffers():
    return [(np.zeros(SPEC.key_shape(3), np.float32), np.zeros(SPEC.value_shape(3), np.float32)) for _ in range(2)]


def addresses_of(planes):
    return [array.ctypes.data for plane in planes for array in plane]


def test_subclasses_learn_of_every_change_of_the_arrays():
    first, second = buffers(), buffers()
    storage = WithAddresses(SPEC, 3, first)
    assert storage.addresses == addresses_of(first)
    storage.rebind(second)
    assert storage.addresses == addresses_of(second)
    storage.close()
    assert storage.addresses == []
    storage.close()
    with pytest.raises(CacheClosed):
        storage.rebind(first)
    assert storage.addresses == []


def test_subclasses_learn_of_own_memory():
    storage = WithAddresses(SPEC, 3)
    assert storage.addresses == addresses_of(storage.planes)
    assert len(set(storage.addresses)) == 4


def test_a_refused_change_changes_nothing():
    first, second = buffers(), buffers()
    storage = WithAddresses(SPEC, 3, first)
    view = storage.view(0)
    for refused in (storage.close, lambda: storage.rebind(second)):
        with pytest.raises(ViewsOutstanding):
            refused()
    del view
    with pytest.raises(ValueError, match="has shape"):
        storage.rebind([(k, v[:-1]) for k, v in second])
    assert storage.addresses == addresses_of(first) == addresses_of(storage.planes)
