from libc.stdint cimport int32_t, int64_t, uint8_t

from pagedcache.core.eviction cimport EvictionPolicy

cdef enum:
    MAX_LEVELS = 64


cdef class PriorityTTL(EvictionPolicy):
    cdef int64_t ttl[MAX_LEVELS]        # nanoseconds that an idle block of a level is kept in preference to others
    cdef int32_t oldest[MAX_LEVELS]     # ends of a level's list, ZERO_BLOCK where it is empty
    cdef int32_t newest[MAX_LEVELS]
    cdef uint8_t *level                 # [num_blocks + 1] of published blocks
    cdef int64_t *since                 # [num_blocks + 1] nanoseconds: when an idle block lost its last reference
    cdef int64_t now                    # nanoseconds, as of the last tick; never goes back
    cdef int64_t skew                   # nanoseconds that `advance` has added to the clock

    cdef list c_list(self, int level)
