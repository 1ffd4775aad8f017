from libc.stdint cimport int32_t, int64_t

from pagedcache.core.prefix_index cimport PrefixIndex
from pagedcache.core.records cimport BlockRecord


cdef class EvictionPolicy:
    cdef BlockRecord *records       # the pool's, [num_blocks + 1]; the policy owns prev and next of idle blocks
    cdef PrefixIndex index          # the pool's, which names the parent of a block; None until a table brings one
    cdef int32_t num_idle           # blocks in the policy's care
    cdef readonly int num_levels    # priorities are 0..num_levels - 1
    cdef readonly int64_t nbytes    # held beside the records

    cdef int c_bind(self, BlockRecord *records, int32_t num_blocks) except -1
    cdef void c_insert(self, int32_t block) noexcept nogil
    cdef void c_remove(self, int32_t block) noexcept nogil
    cdef int32_t c_pop(self) noexcept nogil
    cdef void c_tick(self) noexcept nogil
    cdef void c_set_level(self, int32_t block, int level) noexcept nogil
    cdef void c_raise(self, int32_t block, int level) noexcept nogil
    cdef int c_level(self, int32_t block) noexcept nogil
    cdef list c_order(self)


cdef class LRU(EvictionPolicy):
    pass
