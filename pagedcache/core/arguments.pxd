cimport cython
from libc.stdint cimport int32_t, int64_t


cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define PC_FREE_THREADED 1
    #else
    #define PC_FREE_THREADED 0
    #endif
    """
    const bint FREE_THREADED "PC_FREE_THREADED"     # another thread may write to a caller's array at any time


@cython.final
cdef class Int32s:              # a contiguous native int32 array of a caller
    cdef const int32_t *data    # [n]
    cdef Py_ssize_t n
    cdef int32_t one            # what data points to where the caller gave a scalar
    cdef object owner           # keeps data alive


@cython.final
cdef class Int64s:              # the same of int64
    cdef const int64_t *data
    cdef Py_ssize_t n
    cdef object owner


cdef Int64s handles_of(object ids)
cdef Int32s int32s_of(object values, str name)
cdef Int32s own_int32s(object values, str name)
cdef Int32s counts_of(object counts, Py_ssize_t n, str name)
cdef Int32s own_counts(object counts, Py_ssize_t n, str name)
cdef list token_lists(object prompts, str name)
cdef int refuse_negative(Int32s values, str name) except -1
cdef object new_int8s(Py_ssize_t n, signed char **data)
cdef object new_int32s(Py_ssize_t n, int32_t **data)
cdef object new_int64s(Py_ssize_t n, int64_t **data)
