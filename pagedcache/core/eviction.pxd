from libc.stdint cimport int32_t

from pagedcache.core.records cimport BlockRecord


cdef class EvictionPolicy:
    cdef BlockRecord *records   # the pool's, [num_blocks + 1]; the policy owns prev and next of idle blocks
    cdef int32_t num_idle       # blocks in the policy's care

    cdef void c_bind(self, BlockRecord *records) noexcept nogil
    cdef void c_insert(self, int32_t block) noexcept nogil
    cdef void c_remove(self, int32_t block) noexcept nogil
    cdef int32_t c_pop(self) noexcept nogil


cdef class LRU(EvictionPolicy):
    pass
