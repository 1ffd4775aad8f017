from libc.stdint cimport int32_t, int64_t, uint64_t

from pagedcache.core.queues cimport Queues


cdef class Ghosts:
    cdef int32_t capacity           # most ghosts
    cdef int32_t num_vacant
    cdef Queues queues              # of ghosts 1..capacity
    cdef uint64_t *tags             # [capacity + 1] what the ghost is of
    cdef int32_t *chain             # [capacity + 1] the next ghost of the same home; of a vacant one the next vacant
    cdef int32_t *homes             # [capacity + 1] first ghost of a home, or NO_ITEM; entry 0 heads the vacant ones
    cdef readonly int64_t nbytes

    cdef int32_t *c_find(self, uint64_t tag) noexcept nogil
    cdef void c_add(self, int queue, uint64_t tag) noexcept nogil
    cdef int c_take(self, uint64_t tag) noexcept nogil
    cdef void c_drop_oldest(self, int queue) noexcept nogil
    cdef int c_check(self) except -1
