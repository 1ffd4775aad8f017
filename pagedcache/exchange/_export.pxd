"""Arrays for other libraries, by DLPack."""

cimport numpy as cnp


cdef class Exported:
    cdef readonly object array      # the same memory in NumPy, of ml_dtypes or, without it, of unsigned integers
    cdef readonly str dtype         # the name of the type, whatever NumPy knows of it
    cdef cnp.ndarray bits           # the same memory once more, of a type that is NumPy's own
    cdef tuple code                 # type code and bits of DLPack
    cdef object __weakref__
