"""The memory that a step's arrays are views of.

A StepTable binds a set of buffers for each step that may be open, and fills it at every `extend`. A row of
block_tables keeps its place while the same sequence stands there, so that a decode step writes only what
has changed.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset

import numpy as np

cdef enum:
    FIRST_WIDTH = 64    # entries of a table row to begin with; doubled when a sequence needs more


cdef int64_t grown(int64_t have, int64_t want) noexcept nogil:
    return want if want > 2 * have else 2 * have


@cython.no_gc_clear    # a table that is collected still reads them
cdef class Buffers:
    """NumPy arrays by name, read-only for everyone but the core, which writes through their addresses."""

    def __cinit__(self):
        self.arrays = {}
        self.views = {}

    cdef void *c_new(self, str name, shape, dtype, int fill) except NULL:
        """A new array under `name`, every entry `fill`; its address."""
        cdef const unsigned char[::1] raw
        array = np.full(shape, fill, dtype)
        array.flags.writeable = False
        raw = array.reshape(-1).view(np.uint8)
        self.arrays[name] = array
        self.owners = tuple(self.arrays.values())   # which the collector does not empty, as it may a dict
        self.views.pop(name, None)
        return <void *>&raw[0]

    cdef object c_view(self, str name, Py_ssize_t n):
        """The first n entries; decode steps ask for the same view again and again, in every layer."""
        view = self.views.get(name)
        if view is None or len(view) != n:
            array = self.arrays[name]
            view = array[:n]
            if self.arrays[name] is array:  # making the view may have run a finalizer, and that a verb
                self.views[name] = view
        return view


@cython.no_gc_clear    # a table that is collected still reads them
cdef class GroupBuffers(Buffers):
    """Owner of the arrays that each layer group has for itself."""

    def __cinit__(self, int32_t max_sequences):
        self.max_sequences = max_sequences
        self.c.widths = <int32_t *>self.c_new("widths", max_sequences + 1, np.int32, 0)
        self.c.kv_starts = <int32_t *>self.c_new("kv_starts", max_sequences + 1, np.int32, 0)
        self.c.told = <int32_t *>self.c_new("told", (max_sequences + 1, 2), np.int32, 0)
        self.c.appended = <int32_t *>self.c_new("appended", max_sequences + 1, np.int32, 0)
        self.c.copiers = <int32_t *>self.c_new("copiers", max_sequences + 1, np.int32, 0)
        self.c_fit(FIRST_WIDTH, max_sequences + 1, 8, max_sequences + 1)

    cdef int c_fit(self, int32_t width, int64_t tokens, int64_t copies, int64_t new) except -1:
        """Make room; a wider table is a new one, all -1."""
        cdef int64_t room
        if width > self.c.width:
            self.c_set_width(<int32_t>grown(self.c.width, width))
        if tokens > self.c.room_slots:
            room = grown(self.c.room_slots, tokens)
            self.c.slots = <int64_t *>self.c_new("slots", room, np.int64, 0)
            self.c.room_slots = room
        if copies > self.c.room_copies:
            room = grown(self.c.room_copies, copies)
            self.c.copies = <int32_t *>self.c_new("copies", (room, 2), np.int32, 0)
            self.c.room_copies = room
        if new > self.c.room_new:
            room = grown(self.c.room_new, new)
            self.c.new_blocks = <int32_t *>self.c_new("new_blocks", room, np.int32, 0)
            self.c.room_new = room
        return 0

    cdef int c_set_width(self, int32_t width) except -1:
        shape = (self.max_sequences + 1, width)
        self.c.block_tables = <int32_t *>self.c_new("block_tables", shape, np.int32, -1)
        self.c.width = width
        memset(self.c.widths, 0, self.max_sequences * sizeof(int32_t))
        return 0


@cython.no_gc_clear    # a table that is collected still reads them
cdef class StepBuffers(Buffers):
    """Owner of the arrays that all layer groups share, and of each group's."""

    def __cinit__(self, int32_t max_sequences, int32_t number=0, int32_t num_groups=1, tuple state_blocks=()):
        cdef Py_ssize_t rows = max_sequences + 1
        cdef GroupBuffers group
        self.number = number
        self.c.ids = <int64_t *>self.c_new("ids", rows, np.int64, 0)
        self.c.qo_indptr = <int32_t *>self.c_new("qo_indptr", rows, np.int32, 0)
        self.c.kv_lens = <int32_t *>self.c_new("kv_lens", rows, np.int32, 0)
        self.c.kv_pads = <int32_t *>self.c_new("kv_pads", rows, np.int32, 0)
        self.c.shared_prefixes = <int32_t *>self.c_new("shared_prefixes", (rows, 3), np.int32, 0)
        self.c.held_rows = <int32_t *>self.c_new("held_rows", rows, np.int32, -1)
        self.c.places = <int32_t *>self.c_new("places", rows, np.int32, -1)
        self.c.num_shared = -1
        self.state_blocks = state_blocks
        if state_blocks:
            shape = (rows, sum(state_blocks))
            self.c.state_in = <int32_t *>self.c_new("state_in", shape, np.int32, 0)
            self.c.state_out = <int32_t *>self.c_new("state_out", shape, np.int32, -1)
        self.group = group = GroupBuffers(max_sequences)
        for _ in range(num_groups - 1):
            group.sibling = GroupBuffers(max_sequences)
            group.c.next = &group.sibling.c
            group = group.sibling
        self.c_fit(0, rows, 0, 0)

    cdef int c_fit(self, int32_t width, int64_t tokens, int64_t copies, int64_t new) except -1:
        """Make room in every array; in a wider table no row stands at its place yet."""
        cdef int64_t room
        cdef GroupBuffers group = self.group
        if width > group.c.width:
            memset(self.c.held_rows, 0xFF, (group.max_sequences + 1) * sizeof(int32_t))
        while group is not None:
            group.c_fit(width, tokens, copies, new)
            group = group.sibling
        if tokens > self.c.room_tokens:
            room = grown(self.c.room_tokens, tokens)
            self.c.positions = <int64_t *>self.c_new("positions", room, np.int64, 0)
            self.c.token_seq = <int32_t *>self.c_new("token_seq", room, np.int32, 0)
            self.c.room_tokens = room
        return 0
