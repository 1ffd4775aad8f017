from libc.stdint cimport int32_t

from pagedcache.core.swap_table cimport SwapTable


cdef class CompactTable(SwapTable):
    cdef int32_t *planned       # [num_planned, 2] of begin_compaction: sources, and destinations that are held
    cdef int32_t num_planned

    cdef void c_cancel(self) noexcept nogil
    cdef int c_require_no_step(self) except -1
    cdef int32_t c_plan(self, int32_t *pairs) noexcept nogil
    cdef int32_t c_next_group(self, int32_t group) noexcept nogil
    cdef void c_move(self, int32_t row, int32_t j, int32_t to) noexcept nogil
