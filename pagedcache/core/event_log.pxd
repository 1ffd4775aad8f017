from libc.stdint cimport int32_t, uint8_t

from pagedcache.core.key_table cimport KeyTable


cdef struct Event:
    int32_t node        # of the prefix index
    int32_t parent      # its parent, or NO_NODE
    int32_t block
    int32_t key         # number of what begins in the block
    uint8_t kind


cdef class EventLog:
    cdef KeyTable keys
    cdef readonly int32_t capacity
    cdef readonly int32_t block_size
    cdef int32_t count
    cdef bint overrun       # more happened than there is room for; what was recorded is gone
    cdef Event *events      # [capacity]
    cdef int32_t *tokens    # [capacity, block_size] of the blocks stored

    cdef void c_stored(
        self, int32_t node, int32_t parent, int32_t block, int32_t key, const int32_t *tokens
    ) noexcept nogil
    cdef void c_removed(self, int32_t node, int32_t block) noexcept nogil
    cdef void c_moved(self, int32_t node, int32_t block) noexcept nogil
    cdef void c_note(self, uint8_t kind, int32_t node, int32_t block) noexcept nogil
    cdef Event *c_next(self) noexcept nogil
    cdef void c_clear(self) noexcept nogil
    cdef list c_drain(self)
