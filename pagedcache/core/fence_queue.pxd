from libc.stdint cimport int32_t, int64_t

from pagedcache.core.records cimport BlockRecord


cdef class FenceQueue:
    cdef readonly int64_t current   # covers all work that was submitted so far
    cdef readonly int64_t retired   # all work it covers is done
    cdef readonly int32_t count     # blocks that wait
    cdef int32_t num_blocks
    cdef int32_t first              # block with the oldest fence, or ZERO_BLOCK
    cdef int32_t last
    cdef BlockRecord *records       # the pool's; prev and next of the blocks that wait are the queue's
    cdef int64_t *until             # [num_blocks + 1] fence that a block waits for, or 0; NULL until one is named

    cdef int c_cover(self, int64_t fence) except -1
    cdef void c_push(self, int32_t block) noexcept nogil
    cdef int32_t c_pop(self) noexcept nogil
    cdef void c_unlink(self, int32_t block) noexcept nogil
    cdef int c_check(self) except -1

    cdef inline bint c_pending(self) noexcept nogil:
        """Whether a block dropped now has to wait."""
        return self.current > self.retired

    cdef inline bint c_has(self, int32_t block) noexcept nogil:
        return self.count > 0 and self.until[block] > 0
