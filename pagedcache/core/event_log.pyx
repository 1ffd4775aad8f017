"""What the prefix index stored and removed since somebody last asked.

Recording copies five numbers and the tokens; names that hold outside this process are made when the log is
drained (see `_events`). A log that runs over forgets everything and says so: whoever reads it is then told
the whole index anew, which is never more than `capacity` events.
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pagedcache.core.records cimport NO_NODE


cdef enum:      # as in EventKind
    STORED = 1
    REMOVED = 2
    MOVED = 4


@cython.no_gc_clear    # a table that is collected still uses it
cdef class EventLog:
    """Room for `capacity` events of blocks of `block_size` tokens."""

    def __cinit__(self, KeyTable keys not None, int32_t capacity, int32_t block_size):
        self.keys = keys
        self.capacity = capacity
        self.block_size = block_size
        self.events = <Event *>malloc(capacity * sizeof(Event))
        self.tokens = <int32_t *>malloc(<size_t>capacity * block_size * sizeof(int32_t))
        if not self.events or not self.tokens:
            raise MemoryError(f"no memory for a log of {capacity} events")

    def __dealloc__(self):
        free(self.events)
        free(self.tokens)

    cdef void c_stored(
        self, int32_t node, int32_t parent, int32_t block, int32_t key, const int32_t *tokens
    ) noexcept nogil:
        cdef Event *event = self.c_next()
        if event == NULL:
            return
        event.kind = STORED
        event.node = node
        event.parent = parent
        event.block = block
        event.key = key
        self.keys.c_hold(key)
        memcpy(
            self.tokens + <size_t>(self.count - 1) * self.block_size, tokens, self.block_size * sizeof(int32_t)
        )

    cdef void c_removed(self, int32_t node, int32_t block) noexcept nogil:
        self.c_note(REMOVED, node, block)

    cdef void c_moved(self, int32_t node, int32_t block) noexcept nogil:
        self.c_note(MOVED, node, block)

    cdef void c_note(self, uint8_t kind, int32_t node, int32_t block) noexcept nogil:
        cdef Event *event = self.c_next()
        if event == NULL:
            return
        event.kind = kind
        event.node = node
        event.parent = NO_NODE
        event.block = block
        event.key = 0

    cdef Event *c_next(self) noexcept nogil:
        """Room for one more event, or NULL once there was none."""
        if self.count == self.capacity:
            self.c_clear()
            self.overrun = True
        if self.overrun:
            return NULL
        self.count += 1
        return &self.events[self.count - 1]

    cdef void c_clear(self) noexcept nogil:
        cdef int32_t i
        for i in range(self.count):
            self.keys.c_drop(self.events[i].key)
        self.count = 0
        self.overrun = False

    cdef list c_drain(self):
        """(kind, node, parent, block, key entry, token bytes) of each event, oldest first."""
        cdef Py_ssize_t i, size = self.block_size * sizeof(int32_t)
        cdef bytes events, tokens
        cdef const Event *event
        cdef list drained
        events = (<char *>self.events)[:self.count * sizeof(Event)]
        tokens = (<char *>self.tokens)[:self.count * size]
        self.count = 0      # before any object is made whose finalizer may cause further events
        drained = []
        for i in range(len(events) // <Py_ssize_t>sizeof(Event)):
            event = <const Event *><const char *>events + i
            entry = self.keys.entries[event.key]
            drained.append((event.kind, event.node, event.parent, event.block, entry, tokens[i * size:(i + 1) * size]))
            self.keys.c_drop(event.key)
        return drained
