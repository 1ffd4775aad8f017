"""Eviction by frequency with dynamic aging: LFU-DA (Arlitt et al., "Evaluating content management techniques for web
proxy caches", 2000).

    rank of an idle block = prompts that used it + age when it became idle;  age = rank of the block popped last

The lowest rank goes first, of equal ones the least recently used. A block that is no longer asked for keeps its rank
while that of new ones rises, so that it goes in the end.

Uses are counted up to MOST_USES, so that all ranks lie in age ... age + MOST_USES: in a ring of 64 queues, one for each
rank, the next block is in the first queue from that of `age` on that is not empty.

No block P is popped before an idle one, C, that continues it. Whoever uses C uses P, and inserting C makes sure that P
counts as many uses. P was held until later, when age was no lower, so that its rank is no lower; and at equal rank C
stands before P. Who is demoted has C demoted in front of it.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from pagedcache.core.eviction cimport EvictionPolicy
from pagedcache.core.queues cimport Queues
from pagedcache.core.records cimport BlockRecord

from pagedcache.core._checks import require

cdef extern from *:
    int trailing_zeros "__builtin_ctzll"(uint64_t bits) noexcept nogil

cdef enum:
    NUM_RANKS = 64
    MOST_USES = 63
    DEMOTED = 64


@cython.no_gc_clear    # the pool that is collected with it still asks it
cdef class LFUDA(EvictionPolicy):
    """The least frequently used first, where what was popular long ago ages.

    Examples
    --------
    >>> from pagedcache.core import BlockPool
    >>> pool = BlockPool(100, policy=LFUDA())
    """

    def __cinit__(self):
        self.hears_uses = True

    def __dealloc__(self):
        free(self.uses)

    cdef int c_bind(self, BlockRecord *records, int32_t num_blocks) except -1:
        EvictionPolicy.c_bind(self, records, num_blocks)
        self.queues = Queues(num_blocks, NUM_RANKS + 1)
        self.uses = <uint8_t *>calloc(<size_t>num_blocks + 1, sizeof(uint8_t))
        if not self.uses:
            raise MemoryError(f"no memory for the uses of {num_blocks} blocks")
        self.nbytes = self.queues.nbytes + <int64_t>num_blocks + 1
        return 0

    cdef void c_publish(self, int32_t block, int level) noexcept nogil:
        self.uses[block] = 1

    cdef void c_hit(self, int32_t block, int level) noexcept nogil:
        if self.uses[block] < MOST_USES:
            self.uses[block] += 1

    cdef void c_move(self, int32_t block, int32_t to) noexcept nogil:
        self.uses[to] = self.uses[block]

    cdef void c_insert(self, int32_t block) noexcept nogil:
        cdef int32_t parent = self.c_parent(block)
        cdef int queue = <int>((self.age + self.uses[block]) % NUM_RANKS)
        if self.uses[parent] < self.uses[block]:
            self.uses[parent] = self.uses[block]
        self.queues.c_append(queue, block)
        self.filled |= <uint64_t>1 << queue
        self.num_idle += 1

    cdef void c_remove(self, int32_t block) noexcept nogil:
        cdef int queue = self.queues.queue[block]
        self.queues.c_remove(block)
        if queue != DEMOTED and self.queues.count[queue] == 0:
            self.filled &= ~(<uint64_t>1 << queue)
        self.num_idle -= 1

    cdef int c_next_queue(self) noexcept nogil:
        """Queue of the lowest rank that a block has; there is one."""
        cdef int start = <int>(self.age % NUM_RANKS)
        cdef uint64_t turned = self.filled >> start | self.filled << (NUM_RANKS - start) % NUM_RANKS
        return (start + trailing_zeros(turned)) % NUM_RANKS

    cdef int32_t c_pop(self) noexcept nogil:
        cdef int queue = DEMOTED
        cdef int32_t block
        if self.queues.count[DEMOTED] == 0:
            queue = self.c_next_queue()
            self.age += (queue - self.age % NUM_RANKS + NUM_RANKS) % NUM_RANKS
        block = self.queues.c_oldest(queue)
        self.c_remove(block)
        return block

    cdef void c_demote(self, int32_t block) noexcept nogil:
        self.c_remove(block)
        self.queues.c_put_first(DEMOTED, block)
        self.num_idle += 1

    cdef list c_order(self):
        cdef list order = self.queues.c_list(DEMOTED)
        cdef int ahead
        for ahead in range(NUM_RANKS):
            order += self.queues.c_list(<int>((self.age + ahead) % NUM_RANKS))
        return order

    cdef int c_check(self) except -1:
        cdef int queue
        self.queues.c_check()
        for queue in range(NUM_RANKS):
            require((self.filled >> queue & 1) == (self.queues.count[queue] > 0), f"queue {queue} is marked wrongly")
        return 0
