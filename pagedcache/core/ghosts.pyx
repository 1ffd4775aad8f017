"""What was evicted not long ago, by name: policies learn from what comes back.

A ghost is the tag of a block's content, in one of a few queues, oldest first. Tags are those of the prefix index, a
keyed hash of every token up to the block's last: two contents with the same one, which nobody can craft, would share a
ghost, and a wrong ghost only misleads the order of eviction.

    homes   first ghost of a home   chain   the next ghost of the same home     both by number, 0 for none
"""

cimport cython
from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc, free

from pagedcache.core.queues cimport IN_NONE, NO_ITEM, Queues

from pagedcache.core._checks import require


@cython.no_gc
cdef class Ghosts:
    """At most `capacity` ghosts, in `num_queues` queues."""

    def __cinit__(self, int32_t capacity, int num_queues):
        cdef int32_t ghost
        self.capacity = capacity
        self.queues = Queues(capacity, num_queues)
        self.tags = <uint64_t *>calloc(<size_t>capacity + 1, sizeof(uint64_t))
        self.chain = <int32_t *>calloc(<size_t>capacity + 1, sizeof(int32_t))
        self.homes = <int32_t *>calloc(<size_t>capacity + 1, sizeof(int32_t))
        if not self.tags or not self.chain or not self.homes:
            raise MemoryError(f"no memory for {capacity} ghosts")
        self.nbytes = self.queues.nbytes + (<int64_t>capacity + 1) * (sizeof(uint64_t) + 2 * sizeof(int32_t))
        for ghost in range(capacity, 0, -1):
            self.chain[ghost] = self.homes[0]
            self.homes[0] = ghost
        self.num_vacant = capacity

    def __dealloc__(self):
        free(self.tags)
        free(self.chain)
        free(self.homes)

    cdef int32_t *c_find(self, uint64_t tag) noexcept nogil:
        """The link to the ghost of a tag, or to the end of its home's chain."""
        # Multiplying spreads the upper half over any number of homes without a division.
        cdef int32_t *link = &self.homes[1 + (((tag >> 32) * <uint64_t>self.capacity) >> 32)]
        while link[0] != NO_ITEM and self.tags[link[0]] != tag:
            link = &self.chain[link[0]]
        return link

    cdef void c_add(self, int queue, uint64_t tag) noexcept nogil:
        """A ghost of this tag, the newest of the queue; an older one of the same is gone.

        The caller has made room: see num_vacant.
        """
        cdef int32_t ghost
        cdef int32_t *link
        self.c_take(tag)
        link = self.c_find(tag)
        ghost = self.homes[0]
        self.homes[0] = self.chain[ghost]
        self.num_vacant -= 1
        link[0] = ghost
        self.chain[ghost] = NO_ITEM
        self.tags[ghost] = tag
        self.queues.c_append(queue, ghost)

    cdef int c_take(self, uint64_t tag) noexcept nogil:
        """Lay the ghost of a tag; the queue that it was in, or IN_NONE if there was none."""
        cdef int32_t *link = self.c_find(tag)
        cdef int32_t ghost = link[0]
        cdef int queue
        if ghost == NO_ITEM:
            return IN_NONE
        queue = self.queues.queue[ghost]
        self.queues.c_remove(ghost)
        link[0] = self.chain[ghost]
        self.chain[ghost] = self.homes[0]
        self.homes[0] = ghost
        self.num_vacant += 1
        return queue

    cdef void c_drop_oldest(self, int queue) noexcept nogil:
        """Forget the oldest ghost of a queue that has one."""
        self.c_take(self.tags[self.queues.c_oldest(queue)])

    cdef int c_check(self) except -1:
        """Audit every ghost; O(capacity)."""
        cdef int32_t ghost, alive = 0
        self.queues.c_check()
        for ghost in range(1, self.capacity + 1):
            if self.queues.queue[ghost] != IN_NONE:
                alive += 1
                require(self.c_find(self.tags[ghost])[0] == ghost, f"ghost {ghost} is not found")
        require(alive + self.num_vacant == self.capacity, f"{alive} ghosts and {self.num_vacant} vacant ones")
        return 0
