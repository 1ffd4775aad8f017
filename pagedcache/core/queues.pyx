"""Doubly linked queues over numbered items, an item in one of them at most: what eviction policies order blocks in.

    head of queue q <-> oldest <-> ... <-> newest <-> head of queue q

Everything is made for so many items, so that nothing is allocated later, and all is O(1).
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from pagedcache.core._checks import require


@cython.no_gc
cdef class Queues:
    """`num_queues` queues of items 1..num_items, all empty at first."""

    def __cinit__(self, int32_t num_items, int num_queues):
        cdef size_t num_places = <size_t>num_items + 1 + num_queues
        cdef int queue
        self.num_items = num_items
        self.num_queues = num_queues
        self.places = <Place *>malloc(num_places * sizeof(Place))
        self.queue = <uint8_t *>malloc(<size_t>num_items + 1)
        if not self.places or not self.queue:
            raise MemoryError(f"no memory for queues of {num_items} items")
        self.nbytes = num_places * sizeof(Place) + num_items + 1
        memset(self.queue, IN_NONE, <size_t>num_items + 1)
        for queue in range(num_queues):
            self.places[num_items + 1 + queue].prev = num_items + 1 + queue
            self.places[num_items + 1 + queue].next = num_items + 1 + queue

    def __dealloc__(self):
        free(self.places)
        free(self.queue)

    cdef list c_list(self, int queue):
        """The items of a queue, oldest first; cut short where links go round."""
        cdef list items = []
        cdef int32_t item = self.c_oldest(queue)
        while item != NO_ITEM and len(items) <= self.count[queue]:
            items.append(item)
            item = self.places[item].next
            if item > self.num_items:
                break
        return items

    cdef tuple c_save(self):
        """A copy of all that changes, for `c_restore`."""
        cdef size_t num_places = <size_t>self.num_items + 1 + self.num_queues
        return (
            (<char *>self.places)[:num_places * sizeof(Place)],
            (<char *>self.queue)[:self.num_items + 1],
            (<char *>self.count)[:sizeof(self.count)],
        )

    cdef int c_restore(self, tuple saved) except -1:
        cdef bytes places, queue, count
        places, queue, count = saved
        memcpy(self.places, <const char *>places, len(places))
        memcpy(self.queue, <const char *>queue, len(queue))
        memcpy(self.count, <const char *>count, len(count))
        return 0

    cdef int c_check(self) except -1:
        """Audit links and counts; O(num_items)."""
        cdef int queue
        cdef int32_t item, found
        cdef int64_t standing = 0
        for queue in range(self.num_queues):
            items = self.c_list(queue)
            require(len(items) == self.count[queue], f"queue {queue} has {len(items)} of {self.count[queue]} items")
            for found in items:
                require(self.queue[found] == queue, f"item {found} is linked into queue {queue} and elsewhere")
            standing += len(items)
        for item in range(1, self.num_items + 1):
            standing -= self.queue[item] != IN_NONE
        require(standing == 0, "an item is said to stand in a queue that does not have it")
        return 0
