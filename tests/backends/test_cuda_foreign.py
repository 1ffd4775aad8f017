"""Which arrays count as a GPU's, and how their types come to CuPy; NumPy stands for CuPy, and the CPU for the GPU."""

from types import SimpleNamespace

import numpy as np
import pytest

from pagedcache.backends.cuda import _foreign
from pagedcache.exchange import as_numpy, export


class Array(np.ndarray):
    """Stands for cupy.ndarray."""


@pytest.fixture(autouse=True)
def _numpy_for_cupy(monkeypatch):
    stand_in = SimpleNamespace(ndarray=Array, from_dlpack=np.from_dlpack, asarray=np.asarray)
    monkeypatch.setattr(_foreign, "cupy", lambda: stand_in)


class Elsewhere:
    def __init__(self, *device):
        self.device = device

    def __dlpack_device__(self):
        return self.device


class Interface:
    __cuda_array_interface__ = {"version": 3}  # noqa: RUF012


def test_what_is_on_a_gpu():
    assert all(map(_foreign.is_on_gpu, [Elsewhere(2, 0), Elsewhere(13, 1), Interface(), np.zeros(2).view(Array)]))
    assert not any(map(_foreign.is_on_gpu, [Elsewhere(1, 0), np.zeros(2), [1], export(np.zeros(2))]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_i02_tensors_of_torch_come_as_cupy_can_take_them(dtype, requires_grad):
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6).to(getattr(torch, dtype))
    taken = _foreign.as_cupy(tensor.clone().requires_grad_(requires_grad))
    assert taken.dtype == (dtype if dtype.startswith("float") and "_" not in dtype else f"u{tensor.itemsize}")
    assert taken.tobytes() == as_numpy(tensor).tobytes()
