from libc.stdint cimport int32_t

from pagedcache.core.share_table cimport ShareTable


cdef class ArchiveTable(ShareTable):
    cdef int c_require_shareable(self, int32_t leader, int32_t shared, int32_t pad) except -1
    cdef void c_arrive(self, int32_t row, const int32_t *tokens, int32_t leader, int32_t shared) noexcept nogil
    cdef void c_miss(self, int32_t row, int32_t j, int32_t side, const int32_t *tokens) noexcept nogil
