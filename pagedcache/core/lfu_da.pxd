from libc.stdint cimport int64_t, uint8_t, uint64_t

from pagedcache.core.eviction cimport EvictionPolicy
from pagedcache.core.queues cimport Queues


cdef class LFUDA(EvictionPolicy):
    cdef Queues queues
    cdef uint8_t *uses          # [num_blocks + 1] prompts that used a published block, up to MOST_USES
    cdef int64_t age            # rank of the block that was popped last
    cdef uint64_t filled        # bit q is set where queue q has a block

    cdef int c_next_queue(self) noexcept nogil
