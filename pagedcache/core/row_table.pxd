cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pagedcache.core.arguments cimport Int64s
from pagedcache.core.block_pool cimport BlockPool
from pagedcache.core.key_table cimport KeyTable, RowKeys
from pagedcache.core.prefix_index cimport PrefixIndex
from pagedcache.core.records cimport NO_NODE


cdef enum:
    MAX_STEPS = 8   # open at a time; a deeper pipeline only holds memory longer

cdef enum:          # states of a row
    VACANT          # no sequence
    LIVE            # a sequence that its handle names
    SWAPPED         # as LIVE, but blocks of it are elsewhere: only swap_in and release may name it
    DOOMED          # released while a step names it; vacant once the last such step closes

cdef enum Naming:   # which rows a verb may name
    OPEN_OR_CLOSED  # live ones
    CLOSED          # live ones that no open step names
    AWAY            # swapped ones
    ANY             # live or swapped ones


cdef struct SwappedBlocks:
    int32_t count           # blocks that are elsewhere
    int64_t *places         # [count] their entries, 0 meanwhile: entry * groups + group, below 0 of states
    int32_t *tokens         # [count, block_size] their token ids


cdef struct Row:            # 64 bytes: a cache line
    int32_t generation      # upper half of the handle; counts the sequences that stood here
    int32_t mark            # the last call that named the row: finds repeats
    int32_t position        # next row coordinate, committed
    int32_t end             # the same once every open step is committed
    int32_t num_blocks      # entries of the table row that hold a block, allotted ones included
    int32_t clean           # leading entries of the table row that some step's diff has told
    int32_t node            # index node of the last published block, or NO_NODE
    int32_t num_published   # leading blocks that are index nodes
    int32_t pad             # leading positions that are never visible
    int32_t holds           # open steps that name the row
    int32_t partial         # position within a block where a hit ended, whose copy the last block is for; 0: none
    uint8_t state
    uint8_t publishes       # full blocks go to the index: no pads, all tokens known
    uint8_t level           # priority of its published blocks, for the eviction policy
    RowKeys *keys           # what its content depends on besides tokens; NULL: nothing
    SwappedBlocks *swapped  # of a SWAPPED row


cdef struct SideGroup:      # a layer group beside group 0, which is one of full attention
    int32_t window          # tokens that a query sees, its own included; 0: all
    bint is_chunked         # the window does not slide: a query sees the tokens of its own chunk of so many
    int32_t sink_tokens     # leading positions, behind the pads, that are never released
    int32_t most            # blocks that admit allots beyond these and beyond what it found; 0: all
    int32_t *filled         # [max_sequences] entries of the table row that are, or were, a block
    int32_t *first          # [max_sequences] first entry behind the sinks that is not released
    int32_t *clean          # [max_sequences] as Row.clean
    int32_t *shown          # [num_buffers, max_sequences] as RowTable.shown


cdef inline int32_t named_row(Row *rows, int32_t num_rows, int32_t call, int64_t handle, Naming naming) noexcept nogil:
    """The row of a handle, marked as named by this call; -1 where it may not be named.

    Everything comes in as an argument, so that it stays in registers over a loop of stores.
    """
    cdef uint32_t row = <uint32_t>handle
    if row >= <uint32_t>num_rows or rows[row].generation != handle >> 32 or rows[row].mark == call:
        return -1
    if rows[row].state != (SWAPPED if naming == AWAY else LIVE) and (naming != ANY or rows[row].state != SWAPPED):
        return -1
    if naming == CLOSED and rows[row].holds > 0:
        return -1
    rows[row].mark = call
    return <int32_t>row


cdef class RowTable:
    cdef readonly BlockPool pool
    cdef readonly int32_t block_size      # tokens per block
    cdef int32_t shift                    # log2 of block_size, or -1 where it is no power of two
    cdef readonly int32_t max_sequences   # rows
    cdef readonly int32_t max_length      # most positions of one sequence
    cdef readonly int32_t num_sequences   # live rows
    cdef int32_t num_swapped              # blocks of live rows that are in another tier
    cdef readonly PrefixIndex index
    cdef KeyTable keys                    # what content may depend on besides tokens, by number
    cdef Row *rows                        # [max_sequences], within row_memory
    cdef void *row_memory
    cdef int32_t *tables                  # [num_sides + 1, max_sequences, pitch] physical block of each logical block
    cdef int32_t pitch
    cdef SideGroup *sides                 # [num_sides] the layer groups beside group 0
    cdef readonly int32_t num_sides
    cdef int32_t *agreed                  # [num_buffers, max_sequences] what `shown` is in every side group, or -1
    cdef int32_t *tails                   # [max_sequences, num_sides] the last block that was shown of each side group
    cdef int32_t *slide_at                # [max_sequences] before this position no window lets a block go
    cdef readonly int32_t max_step_tokens  # most new tokens of a row in one step where a window exists; 0: any number
    cdef int32_t *shown                   # [num_buffers, max_sequences] see c_shown
    cdef int32_t num_buffers              # sets of step buffers: most steps that can be open at a time
    cdef int32_t *vacant                  # stack of vacant rows
    cdef int32_t num_vacant
    cdef int32_t *named                   # [max_sequences + 1] rows that the running call names, and one id too many
    cdef int32_t call                     # number of the running call, for Row.mark

    cdef int c_make_sides(self, side_groups, max_step_tokens) except -1
    cdef size_t c_side_entries(self) noexcept nogil
    cdef size_t c_table_entries(self, int32_t pitch) noexcept nogil
    cdef int c_widen(self, int32_t blocks) except -1
    cdef int32_t c_widest(self) noexcept nogil
    cdef int32_t c_new_call(self, Py_ssize_t n) noexcept nogil
    cdef int c_refuse(self, int64_t handle, int32_t i) except -1
    cdef Py_ssize_t c_name(self, Int64s ids, Naming naming) except -1
    cdef object c_out_of_blocks(self, str verb, int64_t wanted, str remedy)
    cdef int32_t c_open_row(self) noexcept nogil
    cdef void c_close_row(self, int32_t row) noexcept nogil
    cdef void c_append_blocks(self, int32_t row, int32_t num_blocks) noexcept nogil
    cdef int32_t c_drop_blocks(self, int32_t row, int32_t keep) noexcept nogil
    cdef void c_close_gaps(self, int32_t row) noexcept nogil
    cdef void c_unpublish_row(self, int32_t row, int32_t keep) noexcept nogil
    cdef dict c_references(self)
    cdef int c_check(self) except -1

    # What every verb asks per sequence stands here, where each module can inline it.

    @cython.final
    cdef inline int32_t *c_table(self, int32_t row) noexcept nogil:
        return self.tables + <size_t>row * self.pitch

    @cython.final
    cdef inline int32_t *c_side_table(self, int32_t side, int32_t row) noexcept nogil:
        return self.tables + (<size_t>(side + 1) * self.max_sequences + row) * self.pitch

    @cython.final
    cdef inline int64_t c_handle(self, int32_t row) noexcept nogil:
        return <int64_t>self.rows[row].generation << 32 | row

    @cython.final
    cdef inline int32_t c_block_of(self, int32_t position) noexcept nogil:
        """Logical block of a position; asked so often that a division would show."""
        return position >> self.shift if self.shift >= 0 else position // self.block_size

    @cython.final
    cdef inline int32_t c_blocks_for(self, int32_t positions) noexcept nogil:
        return self.c_block_of(positions + self.block_size - 1)

    @cython.final
    cdef inline void c_place(self, int32_t row, int32_t position) noexcept nogil:
        """The row, which no open step names, goes on from `position`; no block waits to be a copy."""
        self.rows[row].position = position
        self.rows[row].end = position
        self.rows[row].partial = 0
        if self.num_sides > 0:
            self.slide_at[row] = 0

    @cython.final
    cdef inline int32_t *c_shown(self, int32_t buffers) noexcept nogil:
        """By row: leading entries that stand in the block_tables of these step buffers; -1: not to be relied on."""
        return self.shown + <size_t>buffers * self.max_sequences

    @cython.final
    cdef inline void c_spoil(self, int32_t row, int32_t entry) noexcept nogil:
        """From `entry` on, the table row differs from what steps have shown."""
        cdef int32_t k
        self.rows[row].clean = min(self.rows[row].clean, entry)
        for k in range(self.num_buffers):
            self.c_shown(k)[row] = min(self.c_shown(k)[row], entry)

    @cython.final
    cdef inline void c_hide(self, int32_t row) noexcept nogil:
        """What step buffers show of the row is void: the next step that names it shows it anew."""
        cdef int32_t k, side
        for k in range(self.num_buffers):
            self.c_shown(k)[row] = -1
            for side in range(self.num_sides):
                self.sides[side].shown[k * self.max_sequences + row] = -1
            if self.num_sides > 0:
                self.agreed[k * self.max_sequences + row] = -1

    @cython.final
    cdef inline bint c_is_writable(self, int32_t block) noexcept nogil:
        return self.pool.records[block].refcount == 1 and self.pool.records[block].node == NO_NODE
