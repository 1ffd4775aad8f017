"""NumPy's arrays for other libraries: capsules of DLPack for every type that K and V are stored as.

NumPy exports neither bfloat16 nor fp8. A capsule holds a reference to the array, which holds on to whatever
keeps its memory; it is dropped by the deleter, which the last user calls, from any thread and without the GIL,
or by the capsule itself where nobody took what is in it.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from pagedcache.exchange._dlpack cimport CPU, IS_COPIED, MAJOR, MINOR, READ_ONLY, Plain, Tensor, Versioned

import numpy as np

cimport numpy as cnp

from pagedcache.exchange._dtypes import CODES, as_bits, numpy_dtype

cdef extern from "Python.h":
    bint Py_IsInitialized() noexcept nogil

cnp.import_array()

ALIASES = {"float8_e4m3": "float8_e4m3fn"}  # what a CacheSpec calls it


cdef void forget(void *owner) noexcept with gil:
    Py_DECREF(<object>owner)


cdef void delete_plain(Plain *managed) noexcept nogil:
    if Py_IsInitialized():  # who lets go after Python's end has nobody to tell
        forget(managed.owner)
    free(managed)


cdef void delete_versioned(Versioned *managed) noexcept nogil:
    if Py_IsInitialized():
        forget(managed.owner)
    free(managed)


cdef void drop_plain(object capsule) noexcept:
    cdef Plain *managed
    if PyCapsule_IsValid(capsule, b"dltensor"):  # who takes what is in a capsule renames it
        managed = <Plain *>PyCapsule_GetPointer(capsule, b"dltensor")
        managed.deleter(managed)


cdef void drop_versioned(object capsule) noexcept:
    cdef Versioned *managed
    if PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        managed = <Versioned *>PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        managed.deleter(managed)


cdef void describe(Tensor *tensor, cnp.ndarray bits, tuple code, int64_t *room) noexcept:
    """Fill a Tensor; `room` is for its shape and strides."""
    cdef int i, n = cnp.PyArray_NDIM(bits)
    cdef int64_t compact = 1, itemsize = cnp.PyArray_ITEMSIZE(bits)
    cdef bint is_compact = cnp.PyArray_IS_C_CONTIGUOUS(bits)
    tensor.data, tensor.byte_offset = cnp.PyArray_DATA(bits), 0
    tensor.device.device_type, tensor.device.device_id = CPU, 0
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = code[0], code[1], 1
    tensor.ndim, tensor.shape, tensor.strides = n, room, room + n
    for i in range(n - 1, -1, -1):
        tensor.shape[i] = cnp.PyArray_DIM(bits, i)
        # Those of a compact array are made here: NumPy's are anything along an axis of one.
        tensor.strides[i] = compact if is_compact else cnp.PyArray_STRIDE(bits, i) // itemsize
        compact *= tensor.shape[i]


cdef object plain_capsule(cnp.ndarray bits, tuple code):
    cdef Plain *managed = <Plain *>malloc(sizeof(Plain) + 2 * cnp.PyArray_NDIM(bits) * sizeof(int64_t))
    if managed == NULL:
        raise MemoryError("no memory for a DLPack capsule")
    describe(&managed.tensor, bits, code, <int64_t *>(managed + 1))
    managed.owner, managed.deleter = <void *>bits, delete_plain
    Py_INCREF(bits)
    try:
        return PyCapsule_New(managed, b"dltensor", drop_plain)
    except BaseException:
        delete_plain(managed)
        raise


cdef object versioned_capsule(cnp.ndarray bits, tuple code, int flags):
    cdef Versioned *managed = <Versioned *>malloc(
        sizeof(Versioned) + 2 * cnp.PyArray_NDIM(bits) * sizeof(int64_t)
    )
    if managed == NULL:
        raise MemoryError("no memory for a DLPack capsule")
    describe(&managed.tensor, bits, code, <int64_t *>(managed + 1))
    managed.version.major, managed.version.minor, managed.flags = MAJOR, MINOR, flags
    managed.owner, managed.deleter = <void *>bits, delete_versioned
    Py_INCREF(bits)
    try:
        return PyCapsule_New(managed, b"dltensor_versioned", drop_versioned)
    except BaseException:
        delete_versioned(managed)
        raise


cdef class Exported:
    """An array that other libraries take without a copy, by DLPack or as NumPy's; made by `export`."""

    def __init__(self, array, str dtype, cnp.ndarray bits):
        self.array, self.dtype, self.bits, self.code = array, dtype, bits, CODES[dtype]

    def __repr__(self):
        return f"Exported({self.dtype} {self.shape}{', read-only' if self.readonly else ''})"

    @property
    def shape(self):
        """Lengths of the axes."""
        return self.array.shape

    @property
    def ndim(self):
        """How many axes there are."""
        return self.array.ndim

    @property
    def nbytes(self):
        """Bytes of all items."""
        return self.array.nbytes

    @property
    def readonly(self):
        """Whether users are asked not to write."""
        return not self.bits.flags.writeable

    @property
    def data_ptr(self):
        """The address of the first item."""
        return <size_t>cnp.PyArray_DATA(self.bits)

    def __len__(self):
        return len(self.array)

    @property
    def __array_interface__(self):
        if self.array.dtype.isbuiltin != 1:  # NumPy has no code for it there; it asks __array__ then
            raise AttributeError(f"an array interface cannot tell {self.dtype}")
        return self.array.__array_interface__

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype, copy=copy)

    def __dlpack_device__(self):
        return CPU, 0

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Return a capsule of this memory, or with copy=True of a compact copy.

        Raises
        ------
        BufferError
            `stream` is not None, `dl_device` is not the CPU, or the memory is read-only and whoever asks does
            not know of read-only memory (`max_version` below 1).
        """
        cdef cnp.ndarray bits = self.bits
        cdef int flags = 0
        if stream is not None:
            raise BufferError(f"stream is {stream!r}; the CPU's memory has no streams, so it must be None")
        if dl_device is not None and tuple(dl_device) != (CPU, 0):
            raise BufferError(f"dl_device is {tuple(dl_device)}; this memory is the CPU's, (1, 0): copy it there first")
        if copy:
            bits, flags = np.array(bits, order="C"), IS_COPIED
        if not cnp.PyArray_ISWRITEABLE(bits):
            flags |= READ_ONLY
        if max_version is not None and max_version[0] >= 1:
            return versioned_capsule(bits, self.code, flags)
        if flags & READ_ONLY:
            raise BufferError(
                "the memory is read-only, which DLPack below 1.0 cannot tell: ask with max_version=(1, 0) or later, "
                "or with copy=True"
            )
        return plain_capsule(bits, self.code)


def export(array, str dtype=None, *, writable=None):
    """Return an array's memory as other libraries take it: torch, JAX, ONNX Runtime, CuPy, NumPy.

    Parameters
    ----------
    array : ndarray
        Of NumPy's numbers or of ml_dtypes; with any strides but negative ones. JAX and ONNX Runtime take
        compact arrays only.
    dtype : str, optional
        What unsigned integers stand for: ``"bfloat16"``, ``"float8_e4m3fn"`` (``"float8_e4m3"``) or ``"float8_e5m2"``.
    writable : bool, optional
        By default as the array is. torch takes no notice of False.

    Returns
    -------
    Exported
        It and what others make of it hold on to the array.

    Raises
    ------
    TypeError
        No array, or of a type that is not exchanged.
    ValueError
        Negative strides; the other byte order; `writable` for read-only memory; a `dtype` of another size.

    Examples
    --------
    >>> shared = export(np.array([0x3F80, 0xC000], np.uint16), "bfloat16")
    >>> shared
    Exported(bfloat16 (2,))
    >>> from pagedcache.exchange import as_numpy
    >>> as_numpy(shared).view(np.uint16).tolist()
    [16256, 49152]
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"array is {type(array).__name__}; it must be a NumPy array: see as_numpy")
    bits, kind = as_bits(np.asarray(array))
    name = kind or bits.dtype.name
    if dtype is not None and ALIASES.get(dtype, dtype) != name:
        name = ALIASES.get(dtype, dtype)
        if name not in CODES or kind or bits.dtype.kind != "u" or CODES[name][1] != 8 * bits.itemsize:
            raise ValueError(f"dtype is {dtype!r}, which an array of {array.dtype} cannot stand for")
    if name not in CODES:
        raise TypeError(f"array is of {array.dtype}, which is not exchanged; it must be of {', '.join(CODES)}")
    if not bits.dtype.isnative:
        raise ValueError(f"array is of {array.dtype}, the other byte order: give array.astype({name!r})")
    if not bits.flags.c_contiguous and any(stride < 0 or stride % bits.itemsize for stride in bits.strides):
        raise ValueError(
            f"array has strides {array.strides}; they must be multiples of {bits.itemsize} and not negative: give "
            "array.copy()"
        )
    if writable and not bits.flags.writeable:
        raise ValueError("writable is True, but the array is read-only: give writable=None, or a copy")
    bits = bits.view()
    bits.flags.writeable = bits.flags.writeable if writable is None else bool(writable)
    return Exported(bits.view(numpy_dtype(name)), name, bits)
