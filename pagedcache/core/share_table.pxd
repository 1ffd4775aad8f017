from libc.stdint cimport int32_t, int64_t

from pagedcache.core.arguments cimport Int32s
from pagedcache.core.compact_table cimport CompactTable
from pagedcache.core.row_table cimport Row


cdef class ShareTable(CompactTable):
    cdef int64_t c_fork(self, int32_t row, int32_t cut) noexcept nogil
    cdef void c_reorder(self, const int32_t *parents, int32_t n, Row *former, int32_t *scratch) noexcept nogil
    cdef bint c_is_settled(self, int32_t row, int32_t cut) noexcept nogil
    cdef int32_t c_cut(self, Int32s cuts, Py_ssize_t i) noexcept nogil
    cdef int c_check_cuts(self, Int32s cuts, Py_ssize_t n, str name) except -1
