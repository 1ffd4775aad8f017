from libc.stdint cimport int32_t, int64_t, uint8_t

from pagedcache.core.eviction cimport EvictionPolicy
from pagedcache.core.ghosts cimport Ghosts
from pagedcache.core.queues cimport Queues


cdef class ARC(EvictionPolicy):
    cdef Queues queues
    cdef Ghosts ghosts
    cdef uint8_t *was_hit       # [num_blocks + 1] a published block was used more than once, its ghosts' time included
    cdef int32_t *continued     # [num_blocks + 1] idle blocks that continue a block
    cdef int64_t recent_share   # RECENT's part of the idle blocks, in 1/num_blocks

    cdef int32_t c_choose(self) noexcept nogil
    cdef void c_remember(self, int queue, int32_t block) noexcept nogil
