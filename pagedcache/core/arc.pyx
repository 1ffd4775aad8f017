"""Adaptive replacement between recency and frequency: ARC (Megiddo and Modha, FAST 2003).

    ghosts RECENT <- RECENT    blocks used once         both queues by the time when the block lost its last reference;
    ghosts FREQUENT <- FREQUENT    used more often      a ghost is the name of a block that went from the queue

RECENT has a share of the idle blocks, and gives way when it has more, else FREQUENT does. Content that comes back
while there is a ghost of it should not have gone: the share of the queue that it went from grows, and more so where
that queue has few ghosts. The paper's cache has a fixed size; here it is what nobody holds, so that the share is a
fraction.

No block P is popped before an idle one, C, that continues it. C stands in FREQUENT only if P does, since inserting C
marks P; in one queue C stands before P, which was held until later; who is demoted has C demoted in front of it. There
remains P in FREQUENT with C in RECENT: as long as that holds of FREQUENT's oldest block, RECENT gives way instead.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from pagedcache.core.eviction cimport EvictionPolicy
from pagedcache.core.ghosts cimport Ghosts
from pagedcache.core.queues cimport Queues
from pagedcache.core.records cimport BlockRecord, ZERO_BLOCK

from pagedcache.core._checks import require

cdef enum:
    RECENT = 0
    FREQUENT = 1
    DEMOTED = 2


@cython.no_gc_clear    # the pool that is collected with it still asks it
cdef class ARC(EvictionPolicy):
    """Blocks used once and blocks used again compete for the memory; what comes back after eviction decides how much.

    It keeps the names of evicted blocks: some 40 bytes for each block of the pool.

    Examples
    --------
    >>> from pagedcache.core import BlockPool
    >>> pool = BlockPool(100, policy=ARC())
    """

    def __cinit__(self):
        self.hears_uses = True

    def __dealloc__(self):
        free(self.was_hit)
        free(self.continued)

    cdef int c_bind(self, BlockRecord *records, int32_t num_blocks) except -1:
        EvictionPolicy.c_bind(self, records, num_blocks)
        self.queues = Queues(num_blocks, 3)
        self.ghosts = Ghosts(num_blocks, 2)
        self.was_hit = <uint8_t *>calloc(<size_t>num_blocks + 1, sizeof(uint8_t))
        self.continued = <int32_t *>calloc(<size_t>num_blocks + 1, sizeof(int32_t))
        if not self.was_hit or not self.continued:
            raise MemoryError(f"no memory for the uses of {num_blocks} blocks")
        self.nbytes = (
            self.queues.nbytes + self.ghosts.nbytes + (<int64_t>num_blocks + 1) * (sizeof(uint8_t) + sizeof(int32_t))
        )
        return 0

    cdef void c_publish(self, int32_t block, int level) noexcept nogil:
        cdef int64_t recent = self.ghosts.queues.count[RECENT], frequent = self.ghosts.queues.count[FREQUENT]
        cdef int ghost = self.ghosts.c_take(self.index.nodes[self.records[block].node].tag)
        self.was_hit[block] = ghost == RECENT or ghost == FREQUENT
        if ghost == RECENT:
            self.recent_share = min(<int64_t>self.num_blocks, self.recent_share + max(1, frequent // recent))
        elif ghost == FREQUENT:
            self.recent_share = max(0, self.recent_share - max(1, recent // frequent))

    cdef void c_hit(self, int32_t block, int level) noexcept nogil:
        self.was_hit[block] = True

    cdef void c_move(self, int32_t block, int32_t to) noexcept nogil:
        self.was_hit[to] = self.was_hit[block]
        self.continued[to] = self.continued[block]
        self.continued[block] = 0

    cdef void c_insert(self, int32_t block) noexcept nogil:
        cdef int32_t parent = self.c_parent(block)
        self.continued[parent] += 1
        if self.was_hit[block]:
            self.was_hit[parent] = True
        self.queues.c_append(FREQUENT if self.was_hit[block] else RECENT, block)
        self.num_idle += 1

    cdef void c_remove(self, int32_t block) noexcept nogil:
        self.continued[self.c_parent(block)] -= 1
        self.queues.c_remove(block)
        self.num_idle -= 1

    cdef int32_t c_choose(self) noexcept nogil:
        """The block that gives way next."""
        cdef int32_t recent = self.queues.c_oldest(RECENT), frequent = self.queues.c_oldest(FREQUENT)
        if self.queues.count[DEMOTED] > 0:
            return self.queues.c_oldest(DEMOTED)
        if recent == ZERO_BLOCK:
            return frequent
        if frequent == ZERO_BLOCK or self.continued[frequent] > 0:
            return recent
        if self.queues.count[RECENT] * <int64_t>self.num_blocks > self.recent_share * self.num_idle:
            return recent
        return frequent

    cdef int32_t c_pop(self) noexcept nogil:
        cdef int32_t block = self.c_choose()
        cdef int queue = self.queues.queue[block]
        self.c_remove(block)
        if queue != DEMOTED:
            self.c_remember(queue, block)
        return block

    cdef void c_remember(self, int queue, int32_t block) noexcept nogil:
        """A ghost of the block; beyond what the paper keeps of RECENT, or the pool's size, the oldest ghost goes."""
        cdef int32_t of_recent = self.ghosts.queues.count[RECENT], of_frequent = self.ghosts.queues.count[FREQUENT]
        cdef bint is_full = self.ghosts.num_vacant == 0
        if of_recent > 0 and (of_recent + self.queues.count[RECENT] >= self.num_blocks or is_full and of_frequent == 0):
            self.ghosts.c_drop_oldest(RECENT)
        elif is_full:
            self.ghosts.c_drop_oldest(FREQUENT)
        self.ghosts.c_add(queue, self.index.nodes[self.records[block].node].tag)

    cdef void c_demote(self, int32_t block) noexcept nogil:
        self.queues.c_remove(block)
        self.queues.c_put_first(DEMOTED, block)

    cdef list c_order(self):
        """By a rehearsal, on what is put back afterwards."""
        cdef tuple queues = self.queues.c_save()
        cdef size_t size = (<size_t>self.num_blocks + 1) * sizeof(int32_t)
        cdef bytes continued = (<char *>self.continued)[:size]
        cdef int32_t block, num_idle = self.num_idle
        cdef list order = []
        for _ in range(num_idle):
            block = self.c_choose()
            if block == ZERO_BLOCK:
                break
            order.append(block)
            self.c_remove(block)
        self.num_idle = num_idle
        self.queues.c_restore(queues)
        memcpy(self.continued, <const char *>continued, size)
        return order

    cdef int c_check(self) except -1:
        cdef int32_t block
        cdef dict counts = {}
        require(0 <= self.recent_share <= self.num_blocks, f"the share of recent blocks is {self.recent_share}")
        self.queues.c_check()
        self.ghosts.c_check()
        for block in self.c_order():
            counts[self.c_parent(block)] = counts.get(self.c_parent(block), 0) + 1
        for block in range(1, self.num_blocks + 1):
            require(self.continued[block] == counts.get(block, 0), f"blocks that continue {block} miscounted")
        return 0
