"""What `export` makes of an array, and what NumPy makes of that."""

import ctypes
import inspect
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from pagedcache.exchange import as_numpy, export

NATIVE = ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"]
BITS = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}


class Owner:
    """Memory that shows whether it is in use."""

    def __init__(self, shape=(3, 4), dtype=np.float32):
        self.array = np.zeros(shape, dtype)
        self.__array_interface__ = self.array.__array_interface__


def owned(*args):
    owner = Owner(*args)
    return np.asarray(owner), weakref.ref(owner)


@pytest.mark.parametrize("dtype", NATIVE)
def test_numpy_takes_its_own_types_without_a_copy(dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    taken = np.from_dlpack(export(array))
    assert taken.dtype == dtype and taken.ctypes.data == array.ctypes.data and taken.flags.writeable
    np.testing.assert_array_equal(taken, array)


@pytest.mark.parametrize("dtype", BITS)
def test_i02_every_bit_pattern_of_a_type_that_numpy_lacks_comes_back(dtype):
    bits = np.arange(2 ** (8 * np.dtype(BITS[dtype]).itemsize)).astype(BITS[dtype])  # NaN of all kinds, and -0.0
    back = as_numpy(export(bits, dtype))
    assert back.ctypes.data == bits.ctypes.data
    np.testing.assert_array_equal(back.view(bits.dtype), bits)


@pytest.mark.parametrize("dtype", BITS)
def test_arrays_of_ml_dtypes_are_exported_as_what_they_are(dtype):
    array = np.arange(6).astype(getattr(pytest.importorskip("ml_dtypes"), dtype))
    shared = export(array)
    assert (shared.dtype, as_numpy(shared).dtype, np.asarray(shared).dtype) == (dtype, array.dtype, array.dtype)


def test_what_it_says_of_itself():
    array = np.zeros((3, 4), np.uint8)
    shared = export(array, "float8_e4m3")
    assert (shared.shape, shared.ndim, shared.nbytes, len(shared)) == ((3, 4), 2, 12, 3)
    assert (shared.dtype, shared.data_ptr, shared.readonly) == ("float8_e4m3fn", array.ctypes.data, False)
    assert shared.__dlpack_device__() == (1, 0) and repr(shared) == "Exported(float8_e4m3fn (3, 4))"


def test_numpy_sees_the_same_memory_by_its_own_protocols():
    array = np.zeros(3, np.float32)
    shared = export(array)
    assert shared.__array_interface__ == array.__array_interface__
    assert np.asarray(shared).ctypes.data == array.ctypes.data
    assert np.array(shared, np.float64).dtype == np.float64


@pytest.mark.parametrize(
    ("version", "name"),
    [(None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"), ((2, 0), "dltensor_versioned")],
)
def test_who_asks_for_a_versioned_capsule_gets_one(version, name):
    assert f'"{name}"' in repr(export(np.zeros(3)).__dlpack__(max_version=version))


def test_i04_read_only_memory_stays_so():
    array = np.frombuffer(b"\0" * 8, np.float32)
    taken = np.from_dlpack(export(array))
    assert not taken.flags.writeable and not np.asarray(export(array)).flags.writeable
    own = np.zeros(2)
    assert not np.from_dlpack(export(own, writable=False)).flags.writeable and own.flags.writeable


def test_read_only_memory_needs_an_asker_who_knows_of_it():
    shared = export(np.zeros(2), writable=False)
    with pytest.raises(BufferError, match=r"max_version=\(1, 0\)"):
        shared.__dlpack__()
    assert "dltensor" in repr(shared.__dlpack__(copy=True))


def test_a_copy_is_writable_compact_and_apart():
    array = np.arange(12).reshape(3, 4).T
    taken = np.from_dlpack(export(array, writable=False), copy=True)
    assert taken.flags.writeable and taken.flags.c_contiguous and not np.shares_memory(taken, array)
    np.testing.assert_array_equal(taken, array)


@pytest.mark.parametrize("stream", [0, 1, 2, -1])
def test_i10_the_cpu_has_no_stream(stream):
    with pytest.raises(BufferError, match=f"stream is {stream}"):
        export(np.zeros(2)).__dlpack__(stream=stream)


def test_another_device_is_refused():
    shared = export(np.zeros(2))
    assert shared.__dlpack__(dl_device=(1, 0)) is not None
    with pytest.raises(BufferError, match=r"dl_device is \(2, 0\)"):
        shared.__dlpack__(dl_device=(2, 0))


def test_strides_go_along_and_those_that_mean_nothing_do_not():
    array = np.arange(24.0).reshape(4, 6)[::2, 1::3]
    np.testing.assert_array_equal(np.from_dlpack(export(array)), array)
    odd = np.lib.stride_tricks.as_strided(np.zeros((1, 4)), strides=(12345 * 8, 8))  # I05
    assert np.from_dlpack(export(odd)).strides == (32, 8)


def test_no_negative_stride_leaves():
    with pytest.raises(ValueError, match=r"strides \(-8,\).*array.copy"):
        export(np.zeros(4)[::-1])


@pytest.mark.parametrize(
    ("array", "options", "error", "why"),
    [
        ([1, 2], {}, TypeError, "array is list"),
        (np.zeros(2, object), {}, TypeError, "object"),
        (np.zeros(2, "f4,i4"), {}, TypeError, "not exchanged"),
        (np.zeros(2, ">f4"), {}, ValueError, "byte order"),
        (np.zeros(2, np.uint8), {"dtype": "bfloat16"}, ValueError, "cannot stand for"),
        (np.zeros(2, np.int16), {"dtype": "bfloat16"}, ValueError, "cannot stand for"),
        (np.zeros(2, np.uint8), {"dtype": "float4"}, ValueError, "cannot stand for"),
        (np.frombuffer(b"ab", np.uint8), {"writable": True}, ValueError, "read-only"),
    ],
)
def test_what_cannot_leave_is_refused(array, options, error, why):
    with pytest.raises(error, match=why):
        export(array, **options)


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (), (2, 0, 3)])
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_m13_capsules_that_nobody_takes_let_the_memory_go(shape, version):
    array, gone = owned(shape)
    shared = export(array)
    for _ in range(10_000):
        shared.__dlpack__(max_version=version)
    assert gone() is not None
    del array, shared
    assert gone() is None


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), ()])
def test_the_memory_lives_as_long_as_its_last_user(shape):
    array, gone = owned(shape)
    taken = np.from_dlpack(export(array))
    assert taken.shape == shape
    del array
    assert gone() is not None
    del taken
    assert gone() is None


@pytest.mark.thread_unsafe
def test_c02_threads_take_and_drop_capsules():
    array, gone = owned()
    shared = export(array)

    def use(shared):
        for _ in range(2000):
            as_numpy(shared)
            shared.__dlpack__(max_version=(1, 0))

    threads = [threading.Thread(target=use, args=[shared]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del array, shared, threads, thread
    assert gone() is None


class Managed(ctypes.Structure):
    """The head of what a versioned capsule points to."""

    _fields_ = (("version", ctypes.c_uint32 * 2), ("owner", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


def test_c02_the_deleter_runs_without_the_gil():
    array, gone = owned()
    capsule = export(array).__dlpack__(max_version=(1, 0))
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
    at = api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
    used = ctypes.c_char_p(b"used_dltensor_versioned")
    api.PyCapsule_SetName(capsule, used)
    del array
    assert gone() is not None
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(Managed.from_address(at).deleter)  # ctypes releases the GIL
    deleter(at)
    assert gone() is None
    del capsule, used


def test_python_ends_while_another_library_holds_memory(foreign, tmp_path):
    source = inspect.getsource(foreign).replace("pytest.importorskip", "importlib.import_module")
    code = (
        "import atexit, importlib, numpy as np\nfrom pagedcache.exchange import as_numpy, export\n"
        f"{source}\nkept = {foreign.__name__}(export(np.zeros((4, 16), np.uint16), 'bfloat16'))\n"
        "atexit.kept = as_numpy(kept), export(np.ones(3)).__dlpack__()"
    )
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, check=True, timeout=120)
