"""Which idle cached block gives way first: the hook, and least-recently-used.

A policy sees three events, each O(1): a published block loses its last reference (insert), gains
one again (remove), or the pool wants one back (pop). It keeps its list in the block records
themselves, so that it never allocates, or in arrays made for as many blocks (see queues).

A policy must never pop a block before the blocks that continue it. Sequences drop their blocks
tail first and take whole prefixes, so that plain LRU order has this property by itself. Whoever
orders otherwise has the parent of a block from c_parent.

A policy that sets hears_uses is told more, of blocks that somebody holds: one is published, with a
priority (publish); one is used by another prompt, with its priority (hit); another block takes its
place (move). Those with a clock may read it once per verb (tick). A block of which it is known that
nobody will ask for it is put first (demote).
"""

cimport cython
from libc.stdint cimport int32_t

from pagedcache.core.records cimport BlockRecord, ZERO_BLOCK


@cython.no_gc    # what the index refers to never refers to a policy: there is no cycle
cdef class EvictionPolicy:
    """Base of the policies; orders the idle cached blocks of one `BlockPool`."""

    def __cinit__(self):
        self.num_levels = 1

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: it belongs to one pool")

    cdef int c_bind(self, BlockRecord *records, int32_t num_blocks) except -1:
        """Serve the pool with these records, for good."""
        if self.records:
            raise ValueError("the policy has a pool already; give each pool a policy of its own")
        self.records = records
        self.num_blocks = num_blocks
        return 0

    cdef void c_insert(self, int32_t block) noexcept nogil:
        """Nobody holds the published block any more."""

    cdef void c_remove(self, int32_t block) noexcept nogil:
        """An idle block is held again, or no longer published."""

    cdef int32_t c_pop(self) noexcept nogil:
        """Give up an idle block; the caller knows that there is one."""
        return ZERO_BLOCK

    cdef void c_demote(self, int32_t block) noexcept nogil:
        """The idle block goes before all others; called for the blocks that continue it after that."""

    cdef void c_tick(self) noexcept nogil:
        """Blocks are about to be dropped or wanted."""

    cdef void c_publish(self, int32_t block, int level) noexcept nogil:
        """The held block is published, with this priority; what an earlier content had is over."""

    cdef void c_hit(self, int32_t block, int level) noexcept nogil:
        """Another prompt uses the held, published block, which gets at least this priority."""

    cdef void c_move(self, int32_t block, int32_t to) noexcept nogil:
        """The held, published block is another from here on: `to`, which was vacant."""

    cdef list c_order(self):
        """The idle blocks as they would be popped now; for audits. May list one too many, never endlessly."""
        return []

    cdef int c_check(self) except -1:
        """Audit what the policy keeps besides its order; AssertionError names what is wrong."""
        return 0


cdef class LRU(EvictionPolicy):
    """Least recently used first: a doubly linked ring through the records, headed by record 0."""

    cdef int c_bind(self, BlockRecord *records, int32_t num_blocks) except -1:
        EvictionPolicy.c_bind(self, records, num_blocks)
        records[ZERO_BLOCK].prev = ZERO_BLOCK
        records[ZERO_BLOCK].next = ZERO_BLOCK
        return 0

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

    cdef void c_demote(self, int32_t block) noexcept nogil:
        cdef BlockRecord *records = self.records
        cdef int32_t oldest
        self.c_remove(block)
        oldest = records[ZERO_BLOCK].next
        records[block].prev = ZERO_BLOCK
        records[block].next = oldest
        records[oldest].prev = block
        records[ZERO_BLOCK].next = block
        self.num_idle += 1

    cdef list c_order(self):
        cdef list order = []
        cdef int32_t block = self.records[ZERO_BLOCK].next
        while block != ZERO_BLOCK and len(order) <= self.num_idle:
            order.append(block)
            block = self.records[block].next
        return order
