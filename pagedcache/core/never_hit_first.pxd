from libc.stdint cimport uint8_t

from pagedcache.core.eviction cimport EvictionPolicy
from pagedcache.core.queues cimport Queues


cdef class NeverHitFirst(EvictionPolicy):
    cdef Queues queues
    cdef uint8_t *was_hit       # [num_blocks + 1] a published block was used by another prompt than its first
