"""What is in a DLPack capsule as a NumPy array over the same memory, bfloat16 and fp8 too."""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from pagedcache.exchange._dlpack cimport (
    CPU, CUDA_HOST, MAJOR, READ_ONLY, ROCM_HOST, Plain, Tensor, Versioned,
)

import numpy as np

cimport numpy as cnp

from pagedcache.exchange._dtypes import FOREIGN, NAMES

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    object PyArray_New(
        type subtype, int axes, cnp.npy_intp *dims, int type_num, cnp.npy_intp *strides, void *data, int itemsize,
        int flags, PyObject *obj,
    )

cdef enum:
    MOST_AXES = 64  # of an array of NumPy


MUTABLE = ("torch", "onnxruntime")  # whose capsules without versions, and so without a flag, are of writable memory


cdef class Borrowed:
    """Another library's memory: given back when the last array over it is gone."""

    def __dealloc__(self):
        if self.plain != NULL and self.plain.deleter != NULL:
            self.plain.deleter(self.plain)
        if self.versioned != NULL and self.versioned.deleter != NULL:
            self.versioned.deleter(self.versioned)


cdef str name_of(Tensor *tensor):
    """The type's name, or what is in the way of an array of NumPy."""
    if tensor.device.device_type not in (CPU, CUDA_HOST, ROCM_HOST):
        raise BufferError(f"it is on device ({tensor.device.device_type}, {tensor.device.device_id}), not the CPU")
    code, bits, lanes = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    name = NAMES.get((code, bits))
    if name is None or lanes != 1:
        raise BufferError(f"its DLPack type (code {code}, {bits} bits, {lanes} lanes) is none that is exchanged")
    if not 0 <= tensor.ndim <= MOST_AXES:
        raise BufferError(f"it has {tensor.ndim} axes; NumPy has {MOST_AXES} at most")
    return name


def take(capsule, owner_type):
    """Return a capsule's memory as an array, types that NumPy lacks as unsigned integers, and the type's name.

    Parameters
    ----------
    capsule
        Named dltensor or dltensor_versioned; left as it is where this raises.
    owner_type : type
        Of the object that gave it out.
    """
    cdef Borrowed owner = Borrowed()
    cdef Plain *plain = NULL
    cdef Versioned *versioned = NULL
    cdef Tensor *tensor
    cdef cnp.npy_intp shape[MOST_AXES]
    cdef cnp.npy_intp strides[MOST_AXES]
    cdef int64_t step
    cdef int i
    cdef bint writable
    if PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        versioned = <Versioned *>PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        if versioned.version.major != MAJOR:
            raise BufferError(f"its DLPack is {versioned.version.major}.{versioned.version.minor}; known is {MAJOR}.x")
        tensor, writable = &versioned.tensor, not versioned.flags & READ_ONLY
    else:
        plain = <Plain *>PyCapsule_GetPointer(capsule, b"dltensor")
        tensor, writable = &plain.tensor, owner_type.__module__.partition(".")[0] in MUTABLE
    name = name_of(tensor)
    dtype = FOREIGN.get(name) or np.dtype(name)
    step = dtype.itemsize
    for i in range(tensor.ndim - 1, -1, -1):
        shape[i] = tensor.shape[i]
        strides[i] = step if tensor.strides == NULL else tensor.strides[i] * dtype.itemsize
        step *= shape[i]
    PyCapsule_SetName(capsule, b"used_dltensor" if plain != NULL else b"used_dltensor_versioned")
    owner.plain, owner.versioned = plain, versioned
    array = PyArray_New(
        cnp.ndarray, tensor.ndim, shape, dtype.num, strides, <char *>tensor.data + tensor.byte_offset, 0,
        cnp.NPY_ARRAY_WRITEABLE if writable else 0, NULL,
    )
    cnp.set_array_base(array, owner)
    return array, name
