"""Which idle cached block gives way first: the hook, and least-recently-used.

A policy sees three events, each O(1): a published block loses its last reference (insert), gains
one again (remove), or the pool wants one back (pop). It keeps its list in the block records
themselves, so that it never allocates.

A policy must never pop a block before the blocks that continue it. Sequences drop their blocks
tail first and take whole prefixes, so that plain LRU order has this property by itself.
"""

from libc.stdint cimport int32_t

from pagedcache.core.records cimport BlockRecord, ZERO_BLOCK


cdef class EvictionPolicy:
    """Base of the policies; orders the idle cached blocks of one `BlockPool`."""

    cdef void c_bind(self, BlockRecord *records) noexcept nogil:
        self.records = records
        self.num_idle = 0

    cdef void c_insert(self, int32_t block) noexcept nogil:
        pass

    cdef void c_remove(self, int32_t block) noexcept nogil:
        pass

    cdef int32_t c_pop(self) noexcept nogil:
        return ZERO_BLOCK


cdef class LRU(EvictionPolicy):
    """Least recently used first: a doubly linked ring through the records, headed by record 0."""

    cdef void c_bind(self, BlockRecord *records) noexcept nogil:
        self.records = records
        self.num_idle = 0
        records[ZERO_BLOCK].prev = ZERO_BLOCK
        records[ZERO_BLOCK].next = ZERO_BLOCK

    cdef void c_insert(self, int32_t block) noexcept nogil:
        cdef BlockRecord *records = self.records
        cdef int32_t newest = records[ZERO_BLOCK].prev
        records[block].prev = newest
        records[block].next = ZERO_BLOCK
        records[newest].next = block
        records[ZERO_BLOCK].prev = block
        self.num_idle += 1

    cdef void c_remove(self, int32_t block) noexcept nogil:
        cdef BlockRecord *records = self.records
        cdef int32_t older = records[block].prev
        cdef int32_t newer = records[block].next
        records[older].next = newer
        records[newer].prev = older
        self.num_idle -= 1

    cdef int32_t c_pop(self) noexcept nogil:
        cdef int32_t oldest = self.records[ZERO_BLOCK].next
        self.c_remove(oldest)
        return oldest
