from libc.stdint cimport int32_t, int64_t, uint8_t

from pagedcache.core.eviction cimport LRU
from pagedcache.core.queues cimport MAX_QUEUES, Queues


cdef class NamespaceQuotas(LRU):
    cdef dict slots             # name of a namespace with a quota -> slot, from 1 on; 0 is of all others
    cdef int64_t quota[MAX_QUEUES]
    cdef uint8_t *slot          # [num_blocks + 1] of a published block
    cdef Queues idle            # blocks, a queue for each slot
    cdef Queues over            # slots with more idle blocks than their quota, in one queue

    cdef int c_slot_of(self, int32_t node) noexcept nogil
