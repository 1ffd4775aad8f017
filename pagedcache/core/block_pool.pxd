from libc.stdint cimport int32_t

from pagedcache.core.held_blocks cimport HeldBlocks


cdef class BlockPool(HeldBlocks):
    cdef int32_t *callers       # [num_blocks + 1] references taken through allocate and incref

    cdef object c_not_a_callers(self, int32_t block)
    cdef int32_t c_count_down(self, const int32_t *ids, int32_t n, int32_t *idle, int32_t *listed) noexcept nogil
