"""Blocks whose last holder is gone while submitted work may still read them.

A fence is a number that covers all work submitted so far; it retires when that work is done. A block
dropped meanwhile keeps one reference, the queue's, until the fence of its drop has retired. The queue
is a list through prev and next of the records, which no eviction policy uses for a block with references;
a block that a match finds and drops again moves to the end, so that fences never fall along the list.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from pagedcache.core.records cimport ZERO_BLOCK

from pagedcache.core._checks import require


cdef class FenceQueue:
    """Costs nothing until the first fence is named; belongs to a BlockPool."""

    def __dealloc__(self):
        free(self.until)

    cdef int c_cover(self, int64_t fence) except -1:
        """From here on `fence` is what dropped blocks wait for; may raise MemoryError, changing nothing."""
        if fence <= self.current:
            return 0
        if self.until == NULL:
            self.until = <int64_t *>calloc(<size_t>self.num_blocks + 1, sizeof(int64_t))
            if not self.until:
                raise MemoryError(f"no memory for the fences of {self.num_blocks} blocks")
        self.current = fence
        return 0

    cdef void c_push(self, int32_t block) noexcept nogil:
        """Keep the block, whose last other reference is gone, until the current fence has retired."""
        if self.until[block] > 0:
            self.c_unlink(block)
        self.until[block] = self.current
        self.records[block].prev = self.last
        self.records[block].next = ZERO_BLOCK
        if self.count == 0:
            self.first = block
        else:
            self.records[self.last].next = block
        self.last = block
        self.count += 1

    cdef int32_t c_pop(self) noexcept nogil:
        """The next block whose fence has retired, with the queue's reference; or ZERO_BLOCK."""
        cdef int32_t block = self.first
        if self.count == 0 or self.until[block] > self.retired:
            return ZERO_BLOCK
        self.c_unlink(block)
        return block

    cdef void c_unlink(self, int32_t block) noexcept nogil:
        cdef int32_t before = self.records[block].prev, after = self.records[block].next
        if block == self.first:
            self.first = after
        else:
            self.records[before].next = after
        if block == self.last:
            self.last = before
        else:
            self.records[after].prev = before
        self.until[block] = 0
        self.count -= 1

    cdef int c_check(self) except -1:
        cdef int32_t block = self.first, _seen
        cdef int64_t fence = 0
        for _seen in range(self.count):
            require(block != ZERO_BLOCK and self.until[block] >= fence, f"fences fall at block {block}")
            require(self.records[block].refcount > 0, f"block {block} waits for a fence without a reference")
            fence = self.until[block]
            require(fence > self.retired, f"block {block} waits for fence {fence}, which has retired")
            block = self.records[block].next
        return 0
