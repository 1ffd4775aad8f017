from libc.stdint cimport int32_t

from pagedcache.core.share_table cimport ShareTable


cdef class ArchiveTable(ShareTable):
    cdef void c_arrive(self, int32_t row, const int32_t *tokens) noexcept nogil
    cdef void c_miss(self, int32_t row, int32_t j, int32_t side, const int32_t *tokens) noexcept nogil
