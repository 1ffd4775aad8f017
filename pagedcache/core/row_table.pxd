cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t

from pagedcache.core.block_pool cimport BlockPool
from pagedcache.core.prefix_index cimport PrefixIndex
from pagedcache.core.records cimport NO_NODE


cdef enum RowState:
    VACANT      # no sequence
    LIVE        # a sequence that its handle names
    DOOMED      # released while a step names it; vacant once that step closes


cdef struct Row:
    int32_t generation      # upper half of the handle; counts the sequences that stood here
    RowState state
    int32_t pad             # leading positions that are never visible
    int32_t position        # next row coordinate, committed
    int32_t num_blocks      # entries of the table row that hold a block, allotted ones included
    int32_t node            # index node of the last published block, or NO_NODE
    int32_t num_published   # leading blocks that are index nodes
    int32_t clean           # leading entries of the table row that the row's last step has shown
    int32_t place           # where the row's table stands in the step's block_tables, or -1
    int32_t num_new         # blocks that the open step has appended
    int32_t mark            # the last call that named the row: finds repeats
    bint in_step            # an open step names the row
    bint publishes          # full blocks go to the index: no pads, all tokens known


cdef inline int32_t named_row(Row *rows, int32_t num_rows, int32_t call, int64_t handle, bint closed) noexcept nogil:
    """The row of a handle, marked as named by this call; -1 where it may not be named.

    Everything comes in as an argument, so that it stays in registers over a loop of stores.
    """
    cdef uint32_t row = <uint32_t>handle
    if row >= <uint32_t>num_rows:
        return -1
    if rows[row].generation != handle >> 32 or rows[row].state != LIVE or rows[row].mark == call:
        return -1
    if closed and rows[row].in_step:
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
    cdef PrefixIndex index
    cdef Row *rows                        # [max_sequences]
    cdef int32_t *tables                  # [max_sequences, pitch] physical block of each logical block
    cdef int32_t pitch
    cdef int32_t *vacant                  # stack of vacant rows
    cdef int32_t num_vacant
    cdef int32_t *named                   # [max_sequences + 1] rows that the running call names, and one id too many
    cdef int64_t num_adopted              # blocks given up at commit for an equal published one
    cdef int32_t call                     # number of the running call, for Row.mark

    cdef int c_widen(self, int32_t blocks) except -1
    cdef int32_t c_new_call(self, Py_ssize_t n) noexcept nogil
    cdef int c_refuse(self, int64_t handle, int32_t i) except -1
    cdef Py_ssize_t c_name(self, const int64_t[::1] ids, bint closed) except -1
    cdef int32_t c_open_row(self) noexcept nogil
    cdef void c_close_row(self, int32_t row) noexcept nogil
    cdef void c_append_blocks(self, int32_t row, int32_t num_blocks) noexcept nogil
    cdef int32_t c_drop_blocks(self, int32_t row, int32_t keep) noexcept nogil
    cdef void c_store_tokens(self, int32_t row, const int32_t *tokens, int32_t count) noexcept nogil
    cdef int32_t c_publish(self, int32_t row) noexcept nogil
    cdef void c_unpublish_row(self, int32_t row, int32_t keep) noexcept nogil
    cdef dict c_references(self)
    cdef int c_check(self) except -1

    # What every verb asks per sequence stands here, where each module can inline it.

    @cython.final
    cdef inline int32_t *c_table(self, int32_t row) noexcept nogil:
        return self.tables + <size_t>row * self.pitch

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
    cdef inline void c_spoil(self, int32_t row, int32_t entry) noexcept nogil:
        """From `entry` on, the table row differs from what its last step has shown."""
        if self.rows[row].clean > entry:
            self.rows[row].clean = entry

    @cython.final
    cdef inline bint c_is_writable(self, int32_t block) noexcept nogil:
        return self.pool.records[block].refcount == 1 and self.pool.records[block].node == NO_NODE
