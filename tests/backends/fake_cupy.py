"""NumPy in CuPy's clothes: enough of CuPy for the launcher to run without it, on the host's memory.

It shows that the launcher asks for the right things in the right order; whether CuPy does them, only a GPU can show.
"""

from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np

NAMES = ("ascontiguousarray", "exp", "isnan", "isneginf", "log", "stack", "where")


class Array(np.ndarray):
    """Like cupy.ndarray: says where it is, and is made over memory that somebody else owns."""

    def __new__(cls, shape, dtype, memory):
        return np.asarray(_Place(shape, np.dtype(dtype), memory)).view(cls)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])

    @property
    def device(self):
        return SimpleNamespace(id=0)

    def get(self):
        return np.array(self.view(np.ndarray))


class _Place:
    def __init__(self, shape, dtype, memory):
        self.memory = memory  # kept as long as arrays over it
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": (memory.ptr, False), "version": 3}


class Stream:
    """Writes down what is done to it."""

    def __init__(self, log, name):
        self.log, self.name, self.capturing = log, name, False

    def is_capturing(self):
        return self.capturing

    def record(self, event):
        self.log.append(f"record {self.name}")

    def wait_event(self, event):
        self.log.append(f"{self.name} waits")

    def synchronize(self):
        self.log.append(f"synchronize {self.name}")


class Device:
    id = 0

    def __init__(self, capability):
        self.compute_capability, self.attributes = str(capability), {"MultiProcessorCount": 4}

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        return None


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""


def modules(*, driver=13000, gpus=1, capability=90, nvrtc=True, headers=True):
    """Return modules for sys.modules, of a machine where so much of what CuPy needs is there."""
    cupy = ModuleType("cupy")
    cupy.ndarray, cupy.RawModule = Array, lambda **given: SimpleNamespace(get_function=_maker(headers))
    cupy.asarray = lambda values: values if isinstance(values, Array) else np.array(values).view(Array)
    cupy.empty = lambda shape, dtype: np.full(shape, np.array(-1).astype(dtype)).view(Array)
    cupy.zeros = _zeros
    for name in NAMES:
        setattr(cupy, name, _of_arrays(getattr(np, name)))
    cupy.cuda = SimpleNamespace(
        runtime=SimpleNamespace(
            driverGetVersion=lambda: driver, getDeviceCount=lambda: _count(gpus), CUDARuntimeError=CUDARuntimeError
        ),
        Device=lambda: Device(capability), Event=lambda disable_timing: object(), stream=None,
        get_current_stream=lambda: cupy.cuda.stream, MemoryPointer=lambda memory, offset: memory,
        UnownedMemory=lambda ptr, size, owner, device: SimpleNamespace(ptr=ptr, owner=owner),
        using_allocator=lambda allocator: nullcontext(), malloc_managed=None,
    )  # fmt: skip
    cupy.cuda.runtime.deviceSynchronize = lambda: None
    cupy.cuda.stream = Stream([], "first")
    libs = ModuleType("cupy_backends.cuda.libs")
    libs.nvrtc = SimpleNamespace(getVersion=lambda: _version(nvrtc))
    parents = {name: ModuleType(name) for name in ("cupy_backends", "cupy_backends.cuda")}
    return {"cupy": cupy, **parents, "cupy_backends.cuda.libs": libs}


def _of_arrays(function):
    def quiet(*given, **options):
        with np.errstate(all="ignore"):  # CuPy does not warn
            return np.asarray(function(*given, **options)).view(Array)

    return quiet


def _zeros(shape, dtype):
    """Memory of CuPy's begins at multiples of 512 bytes."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(nbytes + 512, np.uint8)
    begin = -memory.ctypes.data % 512
    return memory[begin : begin + nbytes].view(dtype).reshape(shape).view(Array)


def _maker(headers):
    def get_function(name):
        if not headers:
            raise RuntimeError("Failed to find CUDA headers")

    return get_function


def _count(gpus):
    if not gpus:
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    return gpus


def _version(there):
    if not there:
        raise RuntimeError('Failure finding "libnvrtc.so.13"')
    return 13, 0
