from libc.stdint cimport int32_t, int64_t

from pagedcache.core.adopt_table cimport AdoptTable


cdef class SwapTable(AdoptTable):
    cdef int64_t c_places_for(self, int32_t positions) noexcept nogil
    cdef int64_t c_first_place(self, int32_t row) noexcept nogil
    cdef int64_t c_all_places(self, int32_t row) noexcept nogil
    cdef int32_t *c_entry(self, int32_t row, int64_t place) noexcept nogil
    cdef bint c_is_own(self, int32_t row, int64_t place) noexcept nogil
    cdef bint c_is_swap_list(self, int32_t n, const int32_t *blocks, Py_ssize_t count) noexcept nogil
    cdef int32_t c_own_blocks(self, int32_t row) noexcept nogil
    cdef int32_t c_swap_out(self, int32_t row) noexcept nogil
    cdef int32_t *c_begin_swap_in(self, int32_t n, int32_t *filled) except NULL
    cdef int32_t c_fill_gaps(self, int32_t row, int32_t *blocks) noexcept nogil
    cdef void c_come_back(self, int32_t row) noexcept nogil
