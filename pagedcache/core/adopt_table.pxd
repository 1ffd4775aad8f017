from libc.stdint cimport int32_t, int64_t

from pagedcache.core.arguments cimport Int32s
from pagedcache.core.cache_table cimport CacheTable
from pagedcache.core.key_table cimport RowKeys


cdef class AdoptTable(CacheTable):
    cdef dict holds             # number of a hold -> (int32 array, how many of its blocks are held)
    cdef int64_t last_hold      # the newest number

    cdef int c_require_adoptable(self, Int32s blocks) except -1
    cdef int32_t c_adopt_behind(
        self, const int32_t *tokens, const RowKeys *keys, int32_t first, int32_t *scratch, const int32_t *blocks,
        int32_t n, int level
    ) noexcept nogil
    cdef void c_entitle(self, int32_t block, int32_t node, int level) noexcept nogil
