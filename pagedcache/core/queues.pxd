cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum:
    NO_ITEM = 0         # items are numbered from 1, like blocks
    MAX_QUEUES = 255
    IN_NONE = 255       # queue of an item that stands in none


cdef struct Place:
    int32_t prev        # the neighbour towards the oldest; of a queue's head the newest
    int32_t next        # the neighbour towards the newest; of a queue's head the oldest


cdef class Queues:
    cdef int32_t num_items
    cdef int num_queues
    cdef Place *places                  # [num_items + 1 + num_queues] the last ones are the heads of the rings
    cdef uint8_t *queue                 # [num_items + 1] where an item stands, or IN_NONE
    cdef int32_t count[MAX_QUEUES]      # items of each queue
    cdef readonly int64_t nbytes

    cdef list c_list(self, int queue)
    cdef tuple c_save(self)
    cdef int c_restore(self, tuple saved) except -1
    cdef int c_check(self) except -1

    @cython.final
    cdef inline void c_link(self, int queue, int32_t item, int32_t before) noexcept nogil:
        cdef int32_t after = self.places[before].prev
        self.places[item].prev = after
        self.places[item].next = before
        self.places[after].next = item
        self.places[before].prev = item
        self.queue[item] = <uint8_t>queue
        self.count[queue] += 1

    @cython.final
    cdef inline void c_append(self, int queue, int32_t item) noexcept nogil:
        """The item, which stands nowhere, becomes the newest of a queue."""
        self.c_link(queue, item, self.num_items + 1 + queue)

    @cython.final
    cdef inline void c_put_first(self, int queue, int32_t item) noexcept nogil:
        """The item, which stands nowhere, becomes the oldest of a queue."""
        self.c_link(queue, item, self.places[self.num_items + 1 + queue].next)

    @cython.final
    cdef inline void c_remove(self, int32_t item) noexcept nogil:
        """Take the item out of its queue, if it stands in one."""
        cdef int queue = self.queue[item]
        cdef Place place = self.places[item]
        if queue == IN_NONE:
            return
        self.places[place.prev].next = place.next
        self.places[place.next].prev = place.prev
        self.queue[item] = IN_NONE
        self.count[queue] -= 1

    @cython.final
    cdef inline int32_t c_oldest(self, int queue) noexcept nogil:
        """The oldest item of a queue, or NO_ITEM."""
        cdef int32_t item = self.places[self.num_items + 1 + queue].next
        return item if item <= self.num_items else <int32_t>NO_ITEM
