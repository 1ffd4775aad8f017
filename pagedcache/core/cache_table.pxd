from libc.stdint cimport int32_t, uint8_t

from pagedcache.core.pin_table cimport PinTable


cdef class CacheTable(PinTable):
    cdef object namer                   # portable names for events, or None
    cdef bint tell_tokens               # whether events carry token ids
    cdef bint is_naming                 # an events() call is under way

    cdef int32_t c_forget(self, const uint8_t *doomed) noexcept nogil
    cdef object c_namespace(self, int32_t key)
    cdef int c_silence(self, int32_t row) except -1
    cdef int c_mark_path(self, int32_t node, int32_t first, int32_t[::1] root) except -1
    cdef int32_t c_remove_leaf(self, int32_t node) noexcept nogil
    cdef int c_log_published(self) except -1
