"""Other libraries' arrays over the memory of NumPy's."""

import numpy as np
import pytest

from pagedcache.backends.host.memory import zeros
from pagedcache.exchange import export

BITS = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}


def of_torch(shared):
    return pytest.importorskip("torch").from_dlpack(shared)


def of_jax(shared):
    return pytest.importorskip("jax").dlpack.from_dlpack(shared)


def of_onnxruntime(shared):
    return pytest.importorskip("onnxruntime").OrtValue.from_dlpack(shared)


def itself(shared):
    return shared


LIBRARIES = {"exported": itself, "torch": of_torch, "jax": of_jax, "onnxruntime": of_onnxruntime}


@pytest.fixture(params=LIBRARIES)
def foreign(request):
    """A function that makes an array of another library of an `Exported`, over the same memory."""
    if request.param == "jax":
        pytest.importorskip("jax")
    return LIBRARIES[request.param]


@pytest.fixture(params=["exported", "torch", "onnxruntime"])
def writable_foreign(request):
    """The same, of libraries whose arrays may be written."""
    return LIBRARIES[request.param]


@pytest.fixture
def aligned():
    """A function that returns zeros as an `Exported`, where JAX needs them to take them without a copy."""

    def make(shape, dtype):
        memory = zeros if np.prod(shape) else np.zeros
        return export(memory(shape, np.dtype(BITS.get(dtype, dtype))), dtype)

    return make
