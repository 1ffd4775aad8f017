"""What `as_numpy` makes of other libraries' arrays."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

from pagedcache.exchange import as_numpy, export, numpy_dtype

BITS = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}
DEVICE_OFFSET = 40  # in what a versioned capsule points to
DTYPES = ["int8", "uint8", "int32", "float16", "float32", *BITS]


class Producer:
    """Gives out an array's own capsule, with another device written into it; keeps what it is asked for."""

    def __init__(self, array, device=(1, 0), **refused):
        self.array, self.device, self.asked, self.refused = array, device, [], refused

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        self.asked.append(options)
        if self.refused.keys() & options.keys():
            raise TypeError("unexpected keyword")
        capsule = self.array.__dlpack__(**options)
        if self.device != (1, 0):
            pointer = ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
            device = pointer(capsule, b"dltensor_versioned") + DEVICE_OFFSET
            (ctypes.c_int32 * 2).from_address(device)[:] = self.device
        return capsule


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_memory_of_other_libraries_is_taken_as_it_is(foreign, aligned, dtype):
    shared = aligned((4, 16), dtype)
    shared.array.view(np.uint8).reshape(-1)[:64] = np.arange(128, 192)  # NaN of all kinds, -0.0
    taken = as_numpy(foreign(shared))
    assert (taken.dtype, taken.shape, taken.ctypes.data) == (numpy_dtype(dtype), (4, 16), shared.data_ptr)
    assert taken.tobytes() == shared.array.tobytes()


@pytest.mark.parametrize("dtype", BITS)
def test_i02_types_that_numpy_lacks_come_as_bits_without_ml_dtypes(foreign, aligned, dtype, monkeypatch):
    monkeypatch.setattr("pagedcache.exchange._arrays.numpy_dtype", BITS.get)
    assert as_numpy(foreign(aligned((2, 16), dtype))).dtype == BITS[dtype]


def test_who_can_write_may_and_who_cannot_may_not(aligned, foreign):
    shared = aligned((2, 16), "float32")
    taken = as_numpy(foreign(shared))
    assert taken.flags.writeable != type(foreign(shared)).__module__.startswith("jax")
    assert not as_numpy(export(shared.array, writable=False)).flags.writeable


def test_a_capsule_without_versions_is_read_only():
    """Its owner cannot say whether it may be written."""
    old = Producer(np.arange(3.0), max_version=...)
    taken = as_numpy(old)
    assert old.asked == [{"max_version": (1, 1)}, {}] and not taken.flags.writeable
    np.testing.assert_array_equal(taken, old.array)


@pytest.mark.parametrize("select", [np.s_[::2, 1:], np.s_[::-1], np.s_[1:1], np.s_[0, 0], np.s_[:, ::-3]])
def test_any_strides_are_taken(select):
    array = np.asarray(np.arange(24.0).reshape(4, 6)[select])
    taken = as_numpy(Producer(array))
    assert taken.flags.aligned and taken.ctypes.data == array.ctypes.data
    np.testing.assert_array_equal(taken, array)


def test_tensors_of_torch_with_strides():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6).T[1::2]
    taken = as_numpy(tensor)
    assert taken.ctypes.data == tensor.data_ptr()
    np.testing.assert_array_equal(taken.astype(np.float32), tensor.float().numpy())


def test_the_owner_lives_as_long_as_the_array(foreign, aligned):
    shared = aligned((2, 16), "float32")
    taken, gone = as_numpy(foreign(shared)), weakref.ref(shared.array.base)
    del shared
    gc.collect()
    assert gone() is not None and not taken.any()
    del taken
    gc.collect()
    assert gone() is None


def test_m13_what_is_refused_is_given_back():
    array = np.zeros(3, np.complex64)
    producer, gone = Producer(array), weakref.ref(array)
    with pytest.raises(TypeError, match=r"k is Producer.*code 5, 64 bits"):
        as_numpy(producer, "k", copy=False)
    del array, producer
    gc.collect()
    assert gone() is None


def test_what_dlpack_does_not_have_comes_by_numpys_protocols():
    tensor = pytest.importorskip("torch").zeros(3, dtype=pytest.importorskip("torch").complex64)
    assert as_numpy(tensor).dtype == np.complex64


def test_buffers_interfaces_and_lists_are_taken_too(tmp_path):
    np.save(tmp_path / "k.npy", np.arange(3.0))
    mapped = np.load(tmp_path / "k.npy", mmap_mode="r")
    assert type(as_numpy(mapped)) is np.ndarray and not as_numpy(mapped).flags.writeable
    assert as_numpy(memoryview(bytearray(3))).flags.writeable and not as_numpy(memoryview(bytes(3))).flags.writeable
    assert as_numpy([1.5, 2]).tolist() == [1.5, 2]


def test_a_copy_is_one(foreign, aligned):
    shared = aligned((2, 16), "bfloat16")
    taken = as_numpy(foreign(shared), copy=True)
    assert taken.ctypes.data != shared.data_ptr and taken.dtype == numpy_dtype("bfloat16")


def test_what_is_no_array_is_not_taken_without_a_copy():
    with pytest.raises(TypeError, match="out is list; it must be an array"):
        as_numpy([1], "out", copy=False)


@pytest.mark.parametrize(
    ("device", "named"), [((2, 3), "a CUDA GPU 3"), ((8, 0), "Metal 0"), ((99, 1), "type 99, number 1")]
)
def test_i12_arrays_elsewhere_are_refused_by_name(device, named):
    producer = Producer(np.zeros(3), device)
    with pytest.raises(TypeError, match=rf"k is Producer on .*{named}.*k\.cpu\(\)"):
        as_numpy(producer, "k")


def test_i12_arrays_of_cuda_without_dlpack_are_refused_by_name():
    class Array:
        __cuda_array_interface__ = {"version": 3}  # noqa: RUF012

    with pytest.raises(TypeError, match=r"k is Array on a CUDA GPU"):
        as_numpy(Array(), "k")


def test_pinned_memory_is_the_cpus():
    assert as_numpy(Producer(np.ones(3), (3, 0))).sum() == 3


def test_i12_tensors_that_require_a_gradient_are_refused_by_name():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"k is Tensor that requires a gradient: give k.detach\(\)"):
        as_numpy(torch.ones(3, requires_grad=True), "k")


def test_sizes_of_torch_are_numbers():
    """A class of torch's that is no tensor."""
    assert as_numpy(pytest.importorskip("torch").ones(2, 3).shape).tolist() == [2, 3]
