from libc.stdint cimport int32_t

from pagedcache.core.cache_table cimport CacheTable


cdef class ResidencyTable(CacheTable):
    cdef int32_t *planned       # [num_planned, 2] of begin_compaction: sources, and destinations that are held
    cdef int32_t num_planned

    cdef void c_cancel(self) noexcept nogil
    cdef bint c_is_own(self, int32_t block) noexcept nogil
    cdef bint c_is_swap_list(self, int32_t n, const int32_t *blocks, Py_ssize_t count) noexcept nogil
    cdef int32_t c_own_blocks(self, int32_t row) noexcept nogil
    cdef int32_t c_swap_out(self, int32_t row) noexcept nogil
    cdef int32_t c_swap_in(self, int32_t row, int32_t *blocks) noexcept nogil
    cdef int c_require_no_step(self) except -1
    cdef int32_t c_plan(self, int32_t *pairs) noexcept nogil
    cdef int32_t c_next_group(self, int32_t group) noexcept nogil
    cdef void c_move(self, int32_t row, int32_t j, int32_t to) noexcept nogil
