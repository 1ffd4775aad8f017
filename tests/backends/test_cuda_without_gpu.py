"""Backend "cuda" where something that it needs is missing, and its launcher on a CuPy that is made of NumPy."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cupy import Stream, modules

import pagedcache.backends
from pagedcache import CacheSpec
from pagedcache.backends.cuda import CudaBackend, _cupy, _explain
from pagedcache.errors import UnsupportedByBackend, ViewsOutstanding

pytestmark = pytest.mark.thread_unsafe  # modules are put in the place of others


@pytest.fixture
def machine(monkeypatch):
    """A function that makes a machine where so much of what CuPy needs is there; it returns that CuPy."""

    def make(**there):
        fakes = modules(**there)
        for name, module in fakes.items():
            monkeypatch.setitem(sys.modules, name, module)
        _explain.cupy.cache_clear()
        return fakes["cupy"]

    yield make
    _explain.cupy.cache_clear()


def test_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    _explain.cupy.cache_clear()
    with pytest.raises(UnsupportedByBackend, match=r"needs CuPy.*pip install 'pagedcache\[cuda13\]'.*cuda-emulated"):
        CudaBackend()


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ({"driver": 0}, "no NVIDIA driver: install it.*cuda-emulated"),
        ({"gpus": 0}, "no usable GPU .*no CUDA-capable device.*check nvidia-smi.*cuda-emulated"),
        ({"capability": 75}, "8.0 or later .A100.; this one has 7.5"),
        ({"nvrtc": False}, "no NVRTC.*libnvrtc.*pip install nvidia-cuda-nvrtc"),
        ({"headers": False}, r"Failed to find CUDA headers.*extra \[ctk\], or set CUDA_PATH"),
    ],
)
def test_what_is_missing_is_named(machine, there, message):
    machine(**there)
    with pytest.raises(UnsupportedByBackend, match=message):
        CudaBackend()


@pytest.mark.parametrize("twice", [("cupy", "cupy-cuda12x"), ("cupy-cuda12x", "CuPy-CUDA13x")])
def test_cupy_from_two_distributions(machine, monkeypatch, twice):  # I09
    machine()
    found = [SimpleNamespace(name=name) for name in (*twice, "cupy-xarray", "numpy", None)]
    monkeypatch.setattr(_explain.metadata, "distributions", lambda: found)
    first, second = (name.lower() for name in twice)
    with pytest.raises(
        UnsupportedByBackend, match=f"installed 2 times, {first} and {second}.*uninstall {first} {second}"
    ):
        CudaBackend()


def test_importing_the_backend_does_not_import_cupy():
    code = (
        "import json, sys, pagedcache, pagedcache.backends, pagedcache.backends.cuda, pagedcache.backends.cuda._cupy;"
        "print(json.dumps([pagedcache.backends.names(), 'cupy' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    names, imported = json.loads(done.stdout)
    assert {"cuda", "cuda-emulated"} <= set(names) and not imported
    assert names == pagedcache.backends.names()


def test_a_stream_comes_after_the_one_before(machine, monkeypatch):
    cupy = machine()
    log = []
    one, other = Stream(log, "one"), Stream(log, "other")
    launcher = _cupy.CupyLauncher()
    monkeypatch.setattr(_cupy, "_function", lambda kernel, device: lambda *given, **options: log.append(kernel.name))
    for stream in (one, one, other, one):
        cupy.cuda.stream = stream
        launcher.launch(_cupy_kernel("k"), 1, np.zeros(()))
    launcher.synchronize()
    assert log == ["k", "k", "record one", "other waits", "k", "record other", "one waits", "k", "synchronize one"]


def test_what_is_captured_waits_for_nothing(machine, monkeypatch):
    cupy = machine()
    log = []
    one, captured = Stream(log, "one"), Stream(log, "captured")
    captured.capturing = True
    launcher = _cupy.CupyLauncher()
    monkeypatch.setattr(_cupy, "_function", lambda kernel, device: lambda *given, **options: log.append(kernel.name))
    for stream in (one, captured, one):
        cupy.cuda.stream = stream
        launcher.launch(_cupy_kernel("k"), 1, np.zeros(()))
    assert log == ["k", "k", "k"]


def test_memory_is_reused_after_what_read_it(machine):  # C06, R12
    """CuPy keeps free memory for each stream: a copy into it comes after kernels on others that read it."""
    cupy = machine()
    log = []
    launcher = _cupy.CupyLauncher()
    for stream in (Stream(log, "one"), Stream(log, "other")):
        cupy.cuda.stream = stream
        array = launcher.upload(np.arange(3))
    launcher.fill(array, np.arange(3) + 5)
    assert array.get().tolist() == [5, 6, 7]
    assert log == ["record one", "other waits"]


def test_kernels_are_asked_for_their_shared_memory(machine, monkeypatch):
    cupy = machine()
    made, launched = [], []

    class Function:
        def __call__(self, grid, block, arguments, shared_mem):
            launched.append((grid, block, arguments, shared_mem, getattr(self, "max_dynamic_shared_size_bytes", None)))

    class Module:
        def __init__(self, code, options):
            made.append((code, options))

        def get_function(self, name):
            return Function()

    launcher = _cupy.CupyLauncher()
    monkeypatch.setattr(cupy, "RawModule", Module)
    params = np.zeros((), np.dtype([("a", "i4")]))
    for shared in (48 << 10, 1 + (48 << 10), 1 + (48 << 10)):
        launcher.launch(_cupy_kernel("k", shared), 7, params)
    assert launched[0] == ((7,), (64,), (params,), 48 << 10, None)
    assert launched[1] == launched[2] == ((7,), (64,), (params,), 1 + (48 << 10), 1 + (48 << 10))
    assert len(made) == 2 and all(options == ("--std=c++17",) and "k(" in code for code, options in made)
    _cupy._function.cache_clear()


def test_arrays_that_are_out_keep_a_storage_open(machine):
    machine()
    storage = CudaBackend().allocate(CacheSpec(2, 3, 5, block_size=4), 6)
    kept = storage.export()[1][0][2:4, ::2].T
    with pytest.raises(ViewsOutstanding):
        storage.close()
    kept[...] = 7
    assert (storage.view(1)[0][2, ::2] == 7).all()
    del kept
    storage.close()


def test_arrays_of_another_library(machine):
    """An overlap is found by addresses: CuPy knows none of memory that is not its own."""
    cupy = machine()
    launcher = _cupy.CupyLauncher()
    memory = np.zeros(64, np.float32)
    first, second = (
        cupy.ndarray((32,), np.float32, cupy.cuda.UnownedMemory(memory.ctypes.data + 4 * i, 128, memory, 0))
        for i in (0, 31)
    )
    assert not launcher.is_writable_by_kernels(first, second)
    assert launcher.is_writable_by_kernels(first, second[1:])
    assert not launcher.is_writable_by_kernels(first[::2])


def test_arrays_of_another_gpu_are_refused(machine, monkeypatch):  # I11
    cupy = machine()
    launcher = _cupy.CupyLauncher()
    array = cupy.zeros((3, 1, 4), np.dtype(np.float32))
    assert launcher.numbers("q", array, "float32").shape == (3, 1, 4)
    monkeypatch.setattr(launcher._device, "id", 1)
    with pytest.raises(ValueError, match="q is on GPU 0; the backend was made for GPU 1"):
        launcher.numbers("q", array, "float32")


def test_put_rounds_to_bfloat16(machine):
    cupy = machine()
    values = np.array([1, 1 + 2.0**-8, 1 + 3 * 2.0**-8, np.nan, -np.inf, 3.4e38], np.float32)
    out = cupy.zeros((6,), np.dtype(np.uint16))
    with np.errstate(all="ignore"):
        _cupy.CupyLauncher().put(out, cupy.asarray(values))
    assert [hex(bits) for bits in out.get()] == ["0x3f80", "0x3f80", "0x3f82", "0x7fc0", "0xff80", "0x7f80"]


def _cupy_kernel(name, shared=0):
    from pagedcache.backends.cuda._kernels import Kernel

    return Kernel(name, "run_merge(p)", "AttendParams", 64, shared)
