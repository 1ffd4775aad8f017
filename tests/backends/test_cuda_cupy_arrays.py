"""CuPy arrays in and out of backend "cuda": on a GPU where there is one, else NumPy as CuPy and the emulator as GPU."""

import sys

import numpy as np
import pytest
from fake_cupy import Stream, modules

from pagedcache import CacheSpec, KVCache
from pagedcache.backends.cuda import CudaBackend, _cupy, _explain
from pagedcache.backends.cuda_emulated._emulator import Emulator

pytestmark = pytest.mark.thread_unsafe  # modules are put in the place of others


class Foreign:
    """An array of a library that CuPy does not know: it says where it is by __cuda_array_interface__."""

    def __init__(self, array):
        self.kept, self.dtype = array, array.dtype
        self.__cuda_array_interface__ = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__


@pytest.fixture(params=["gpu", "emulated"])
def cupy(request, monkeypatch):
    """CuPy."""
    if request.param == "gpu":
        module = pytest.importorskip("cupy")
        if not module.cuda.is_available():
            pytest.skip("no GPU")
        yield module
        return
    request.getfixturevalue("cxx")
    fakes = modules()
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(_cupy.CupyLauncher, "launch", staticmethod(Emulator().launch))
    monkeypatch.setattr(fakes["cupy"].cuda, "stream", Stream([], "first"))
    plain = fakes["cupy"].asarray
    fakes["cupy"].asarray = lambda values: (
        values.kept if isinstance(values, Foreign) else plain(values)
    )  # CuPy views what has the interface
    _explain.cupy.cache_clear()
    yield fakes["cupy"]
    _explain.cupy.cache_clear()


def numbers(dtype, tokens=5):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((tokens, heads, 32)).astype(dtype) for heads in (4, 2, 2)]


def one_step(backend, arrays, dtype, **given):
    cache = KVCache(
        CacheSpec(layers=1, kv_heads=2, head_dim=32, block_size=4, dtype=dtype), num_blocks=8, backend=backend
    )
    step = cache.extend(cache.admit([range(5)]).ids, 5)
    return cache, cache.attend(0, *arrays, step, **given)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cupy_arrays_in_and_out(cupy, dtype):
    arrays = numbers(dtype)
    _, expected = one_step("cpu", arrays, dtype)
    cache, out = one_step(CudaBackend(), [cupy.asarray(array) for array in arrays], dtype)
    assert isinstance(out, cupy.ndarray) and isinstance(cache.storage.view(0)[0], cupy.ndarray)
    assert np.abs(out.get().astype(np.float32) - expected).max() < 2e-3


def test_out_is_written_where_it_is(cupy):
    arrays = [cupy.asarray(array) for array in numbers("float32")]
    out = cupy.zeros((5, 4, 32), np.dtype(np.float32))
    _, given = one_step(CudaBackend(), arrays, "float32", out=out)
    assert given is out and out.get().any()


def test_arrays_of_others_by_their_interface(cupy):
    arrays = numbers("float32")
    _, expected = one_step("cpu", arrays, "float32")
    _, out = one_step(CudaBackend(), [Foreign(cupy.asarray(array)) for array in arrays], "float32")
    assert np.abs(out.get() - expected).max() < 1e-5


def test_the_pool_can_be_cupys(cupy):
    """K and V in the caller's arrays: what attend writes is there."""
    spec = CacheSpec(layers=1, kv_heads=2, head_dim=32, block_size=4)
    pool = [cupy.zeros(spec.key_shape(8), np.dtype(np.float32)) for _ in range(2)]
    q, k, v = (cupy.asarray(array) for array in numbers("float32"))
    cache = KVCache(spec, num_blocks=8, backend=CudaBackend(), storage=[pool])
    step = cache.extend(cache.admit([range(5)]).ids, 5)
    cache.attend(0, q, k, v, step)
    assert np.array_equal(pool[0].get().reshape(-1, 2, 32)[step.slots], k.get())
