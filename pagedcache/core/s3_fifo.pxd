from libc.stdint cimport int32_t, uint8_t

from pagedcache.core.eviction cimport EvictionPolicy
from pagedcache.core.ghosts cimport Ghosts
from pagedcache.core.queues cimport Queues


cdef struct Standing:
    int32_t continued   # idle blocks that continue this one
    uint8_t is_idle     # it is in the policy's care
    uint8_t uses        # since it was published or last looked at, up to MOST_USES
    uint8_t home        # queue that it belongs to while it stands in none


cdef class S3FIFO(EvictionPolicy):
    cdef Queues queues
    cdef Ghosts ghosts
    cdef Standing *standing     # [num_blocks + 1]

    cdef void c_leave(self, int32_t block) noexcept nogil
    cdef int32_t c_choose(self) noexcept nogil
