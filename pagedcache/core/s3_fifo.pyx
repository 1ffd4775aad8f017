"""Eviction by three queues: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).

    new blocks -> SMALL -> out, used at most once meanwhile; GHOSTS has their names
                       \\-> MAIN, used more often;  and content that comes back while GHOSTS has its name
                           MAIN -> MAIN again, once for each use, up to three;  -> out

SMALL has a tenth of the places and gives way when it has more, else MAIN does. A hit moves nothing, it only counts: a
block that somebody holds keeps its place. If its turn comes meanwhile it loses it, and gets another at the end of its
queue when it is let go. What was published there and forgotten since goes likewise.

No block is popped before an idle one that continues it. One whose turn has come, and which idle blocks continue, steps
aside; it stands first in its queue again when the last of them has gone. Who is demoted has what continues it demoted
in front of it.

Each pop passes blocks that lose their place, step aside or go round: once for each time that they were let go or used,
so that the cost of all operations is O(1) on average.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from pagedcache.core.eviction cimport EvictionPolicy
from pagedcache.core.ghosts cimport Ghosts
from pagedcache.core.queues cimport IN_NONE, Queues
from pagedcache.core.records cimport BlockRecord, ZERO_BLOCK

from pagedcache.core._checks import require

cdef enum:
    SMALL = 0
    MAIN = 1
    DEMOTED = 2
    MOST_USES = 3
    SMALL_PART = 10     # SMALL has one of so many places


@cython.no_gc_clear    # the pool that is collected with it still asks it
cdef class S3FIFO(EvictionPolicy):
    """A short queue for what is new, from which only what was used twice meanwhile comes into the long one.

    It keeps the names of evicted blocks: some 40 bytes for each block of the pool.

    Examples
    --------
    >>> from pagedcache.core import BlockPool
    >>> pool = BlockPool(100, policy=S3FIFO())
    """

    def __cinit__(self):
        self.hears_uses = True

    def __dealloc__(self):
        free(self.standing)

    cdef int c_bind(self, BlockRecord *records, int32_t num_blocks) except -1:
        EvictionPolicy.c_bind(self, records, num_blocks)
        self.queues = Queues(num_blocks, 3)
        self.ghosts = Ghosts(num_blocks - num_blocks // SMALL_PART, 1)
        self.standing = <Standing *>calloc(<size_t>num_blocks + 1, sizeof(Standing))
        if not self.standing:
            raise MemoryError(f"no memory for the uses of {num_blocks} blocks")
        self.nbytes = self.queues.nbytes + self.ghosts.nbytes + (<int64_t>num_blocks + 1) * sizeof(Standing)
        return 0

    cdef void c_publish(self, int32_t block, int level) noexcept nogil:
        cdef int ghost = self.ghosts.c_take(self.index.nodes[self.records[block].node].tag)
        self.queues.c_remove(block)     # it may have the place of a content that was forgotten
        self.standing[block].uses = 0
        self.standing[block].home = SMALL if ghost == IN_NONE else MAIN

    cdef void c_hit(self, int32_t block, int level) noexcept nogil:
        if self.standing[block].uses < MOST_USES:
            self.standing[block].uses += 1

    cdef void c_move(self, int32_t block, int32_t to) noexcept nogil:
        self.queues.c_remove(to)
        self.standing[to] = self.standing[block]
        self.standing[block].continued = 0

    cdef void c_insert(self, int32_t block) noexcept nogil:
        self.standing[self.c_parent(block)].continued += 1
        self.standing[block].is_idle = True
        if self.queues.queue[block] == IN_NONE:
            self.queues.c_append(self.standing[block].home, block)
        self.num_idle += 1

    cdef void c_remove(self, int32_t block) noexcept nogil:
        self.c_leave(block)
        if self.queues.queue[block] == DEMOTED:
            self.queues.c_remove(block)

    cdef void c_leave(self, int32_t block) noexcept nogil:
        """The block is not idle any more; the one that it continues may have waited for that."""
        cdef int32_t parent = self.c_parent(block)
        cdef Standing *standing = &self.standing[parent]
        self.standing[block].is_idle = False
        self.num_idle -= 1
        standing.continued -= 1
        if standing.is_idle and standing.continued == 0 and self.queues.queue[parent] == IN_NONE:
            self.queues.c_put_first(standing.home, parent)

    cdef int32_t c_choose(self) noexcept nogil:
        """The block that gives way next, the first of its queue; ZERO_BLOCK if there is none."""
        cdef Standing *standing
        cdef int32_t block, places
        cdef bint is_long
        cdef int queue
        while self.queues.count[DEMOTED] == 0:
            places = self.queues.count[SMALL] + self.queues.count[MAIN]
            is_long = self.queues.count[SMALL] > places // SMALL_PART
            queue = SMALL if is_long or self.queues.count[MAIN] == 0 else MAIN
            block = self.queues.c_oldest(queue)
            standing = &self.standing[block]
            if block == ZERO_BLOCK:
                return ZERO_BLOCK
            if not standing.is_idle:
                self.queues.c_remove(block)
            elif standing.uses > (queue == SMALL):      # one use of a new block is a matter of course
                standing.uses = 0 if queue == SMALL else standing.uses - 1
                standing.home = MAIN
                self.queues.c_remove(block)
                self.queues.c_append(MAIN, block)
            elif standing.continued > 0:
                self.queues.c_remove(block)
            else:
                return block
        return self.queues.c_oldest(DEMOTED)

    cdef int32_t c_pop(self) noexcept nogil:
        cdef int32_t block = self.c_choose()
        if self.queues.queue[block] == SMALL:
            if self.ghosts.num_vacant == 0:
                self.ghosts.c_drop_oldest(0)
            self.ghosts.c_add(0, self.index.nodes[self.records[block].node].tag)
        self.queues.c_remove(block)
        self.c_leave(block)
        return block

    cdef void c_demote(self, int32_t block) noexcept nogil:
        self.queues.c_remove(block)
        self.queues.c_put_first(DEMOTED, block)

    cdef list c_order(self):
        """By a rehearsal, on what is put back afterwards."""
        cdef tuple queues = self.queues.c_save()
        cdef size_t size = (<size_t>self.num_blocks + 1) * sizeof(Standing)
        cdef bytes standing = (<char *>self.standing)[:size]
        cdef int32_t block, num_idle = self.num_idle
        cdef list order = []
        for _ in range(num_idle):
            block = self.c_choose()
            if block == ZERO_BLOCK:
                break
            order.append(block)
            self.queues.c_remove(block)
            self.c_leave(block)
        self.num_idle = num_idle
        self.queues.c_restore(queues)
        memcpy(self.standing, <const char *>standing, size)
        return order

    cdef int c_check(self) except -1:
        cdef int32_t block
        cdef dict counts = {}
        self.queues.c_check()
        self.ghosts.c_check()
        for block in self.c_order():
            require(self.standing[block].is_idle, f"the policy would pop block {block}, which is held")
            counts[self.c_parent(block)] = counts.get(self.c_parent(block), 0) + 1
        for block in range(1, self.num_blocks + 1):
            require(self.standing[block].continued == counts.get(block, 0), f"blocks that continue {block} miscounted")
        return 0
