from libc.stdint cimport int32_t, int64_t

cdef const int64_t[::1] handles_of(object ids)
cdef const int32_t[::1] int32s_of(object values, str name)
cdef const int32_t[::1] counts_of(object counts, Py_ssize_t n, str name)
cdef int refuse_negative(const int32_t[::1] values, str name) except -1
