"""Eviction of what was never asked for again before what was.

    DEMOTED, then NEVER_HIT, then HIT     each oldest first, by the time when the block lost its last reference

No block P is popped before an idle one, C, that continues it: C stands in HIT only if P does, since inserting C marks
P; in one queue C stands before P, which was held until later; and who is demoted has C demoted in front of it.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

from pagedcache.core.eviction cimport EvictionPolicy
from pagedcache.core.queues cimport Queues
from pagedcache.core.records cimport BlockRecord, ZERO_BLOCK

cdef enum:
    DEMOTED = 0
    NEVER_HIT = 1
    HIT = 2
    NUM_QUEUES = 3


@cython.no_gc_clear    # the pool that is collected with it still asks it
cdef class NeverHitFirst(EvictionPolicy):
    """Blocks that only one prompt used go before those that others found; among equals the least recently used.

    A scan, many prompts that nobody repeats, cannot push out what is used again. The price: what was found once stays
    until nothing else is left, however long ago that was.

    Examples
    --------
    >>> from pagedcache.core import BlockPool
    >>> pool = BlockPool(100, policy=NeverHitFirst())
    """

    def __cinit__(self):
        self.hears_uses = True

    def __dealloc__(self):
        free(self.was_hit)

    cdef int c_bind(self, BlockRecord *records, int32_t num_blocks) except -1:
        EvictionPolicy.c_bind(self, records, num_blocks)
        self.queues = Queues(num_blocks, NUM_QUEUES)
        self.was_hit = <uint8_t *>calloc(<size_t>num_blocks + 1, sizeof(uint8_t))
        if not self.was_hit:
            raise MemoryError(f"no memory for the hits of {num_blocks} blocks")
        self.nbytes = self.queues.nbytes + <int64_t>num_blocks + 1
        return 0

    cdef void c_publish(self, int32_t block, int level) noexcept nogil:
        self.was_hit[block] = False

    cdef void c_hit(self, int32_t block, int level) noexcept nogil:
        self.was_hit[block] = True

    cdef void c_move(self, int32_t block, int32_t to) noexcept nogil:
        self.was_hit[to] = self.was_hit[block]

    cdef void c_insert(self, int32_t block) noexcept nogil:
        if self.was_hit[block]:
            self.was_hit[self.c_parent(block)] = True
        self.queues.c_append(HIT if self.was_hit[block] else NEVER_HIT, block)
        self.num_idle += 1

    cdef void c_remove(self, int32_t block) noexcept nogil:
        self.queues.c_remove(block)
        self.num_idle -= 1

    cdef int32_t c_pop(self) noexcept nogil:
        cdef int32_t block = ZERO_BLOCK
        cdef int queue
        for queue in range(NUM_QUEUES):
            block = self.queues.c_oldest(queue)
            if block != ZERO_BLOCK:
                break
        self.c_remove(block)
        return block

    cdef void c_demote(self, int32_t block) noexcept nogil:
        self.queues.c_remove(block)
        self.queues.c_put_first(DEMOTED, block)

    cdef list c_order(self):
        return self.queues.c_list(DEMOTED) + self.queues.c_list(NEVER_HIT) + self.queues.c_list(HIT)

    cdef int c_check(self) except -1:
        return self.queues.c_check()
