"""States of fixed size, as of SSM layers: what a row has of them, whatever its length.

    row    [ c c c | s s s | s s s | . . . ]     c: blocks of the state where the row ends, all state groups together
                                                 s: spare copies, for the steps to come (num_spare); then zeros

No block of a state is ever written once a step is committed. A step reads the state where the row ended, and writes a
spare copy, which is the state from then on (state_steps). So whoever shares a state, by fork or reorder, shares its
blocks, and nothing is copied. What a step has read becomes spare again, if nobody else has it: a row has one copy more
than steps can be open. Blocks of states are never published.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pagedcache.core.group_table cimport GroupTable
from pagedcache.core.records cimport NO_NODE, ZERO_BLOCK
from pagedcache.core.row_table cimport SWAPPED, VACANT

from pagedcache.core._checks import require
from pagedcache.core.arguments import bounded_int

cdef enum:
    MOST_STATE_BLOCKS = 1 << 20     # of one copy


@cython.no_gc_clear
cdef class StateTable(GroupTable):
    """Rows with the blocks of their states; see SequenceTable."""

    def __cinit__(
        self, pool, block_size, *, max_sequences=256, max_length=None, steps_in_flight=1, int tag_bits=64, events=None,
        fingerprint=b"", max_pinned=None, side_groups=(), max_step_tokens=None, state_blocks=()
    ):
        self.state_groups = tuple([bounded_int(n, "state_blocks", 1, MOST_STATE_BLOCKS) for n in state_blocks])
        self.num_state_blocks = bounded_int(sum(self.state_groups), "state_blocks", 0, MOST_STATE_BLOCKS)
        self.states = <int32_t *>calloc(self.c_state_entries() + 1, sizeof(int32_t))
        self.num_spare = <int32_t *>calloc(self.max_sequences, sizeof(int32_t))
        if not (self.states and self.num_spare):
            self.num_state_blocks = 0
            raise MemoryError(f"no memory for the states of {max_sequences} sequences")

    def __dealloc__(self):
        cdef int32_t row
        if self.pool is not None and self.num_state_blocks > 0:
            with cython.critical_section(self.pool):
                for row in range(self.max_sequences):
                    self.c_drop_states(row, True)
        self.num_state_blocks = 0       # RowTable drops what else rows have
        free(self.states)
        free(self.num_spare)

    @property
    def nbytes(self):
        """Bytes of bookkeeping, pool and index included, without token ids (4 bytes per pool token)."""
        states = self.c_state_entries() + self.max_sequences if self.num_state_blocks > 0 else 0
        return GroupTable.nbytes.__get__(self) + states * sizeof(int32_t)

    cdef size_t c_state_entries(self) noexcept nogil:
        return <size_t>self.max_sequences * (self.num_buffers + 2) * self.num_state_blocks

    cdef int64_t c_state_target(self, int32_t total) noexcept nogil:
        """Blocks that admit takes for the states of a prompt of `total` blocks; `extend` finds them there."""
        return (self.num_buffers + <int64_t>1) * self.num_state_blocks if total > 0 else 0

    cdef int64_t c_blocks_of_row(self, int32_t total, int32_t pad) noexcept nogil:
        return GroupTable.c_blocks_of_row(self, total, pad) + self.c_state_target(total)

    cdef void c_append_states(self, int32_t row, int32_t total) noexcept nogil:
        """Give a new row what c_state_target says; the caller has made enough blocks vacant."""
        cdef int32_t *spare = self.c_state(row) + self.num_state_blocks
        if self.num_state_blocks > 0 and total > 0:
            self.num_spare[row] = self.num_buffers + 1
            self.pool.c_take(ZERO_BLOCK, <int32_t>self.c_state_target(total), spare)

    cdef void c_take_state(self, int32_t row) noexcept nogil:
        """Another copy in the place of the row's state: a spare one, or from the pool, as DemandTable has counted."""
        cdef int32_t *state = self.c_state(row)
        cdef int32_t blocks = self.num_state_blocks
        cdef int32_t *last = state + self.num_spare[row] * <size_t>blocks
        if self.num_spare[row] == 0:
            self.pool.c_take(ZERO_BLOCK, blocks, state)
            return
        memcpy(state, last, blocks * sizeof(int32_t))
        memset(last, 0, blocks * sizeof(int32_t))
        self.num_spare[row] -= 1

    cdef void c_put_aside(self, int32_t row, const int32_t *blocks) noexcept nogil:
        """The row needs this copy no more: it is spare, unless someone else has it or submitted work may use it."""
        cdef int32_t k
        cdef bint own = not self.pool.fences.c_pending()
        if blocks[0] == ZERO_BLOCK:
            return
        for k in range(self.num_state_blocks):
            own = own and self.pool.records[blocks[k]].refcount == 1
        if own:
            self.num_spare[row] += 1
            memcpy(
                self.c_state(row) + self.num_spare[row] * <size_t>self.num_state_blocks, blocks,
                self.num_state_blocks * sizeof(int32_t)
            )
            return
        for k in range(self.num_state_blocks - 1, -1, -1):
            self.pool.c_decref(blocks[k])

    cdef int32_t c_drop_states(self, int32_t row, bint with_current) noexcept nogil:
        """Give back the row's spare copies, and its state; how many blocks became usable."""
        cdef int32_t *state = self.c_state(row)
        cdef int32_t j, usable = 0
        cdef int32_t first = 0 if with_current else self.num_state_blocks
        for j in range((self.num_spare[row] + 1) * self.num_state_blocks - 1, first - 1, -1):
            if state[j] != ZERO_BLOCK:      # none yet, or swapped out
                usable += self.pool.c_decref(state[j])
                state[j] = ZERO_BLOCK
        self.num_spare[row] = 0
        return usable

    cdef int32_t c_drop_blocks(self, int32_t row, int32_t keep) noexcept nogil:
        """Also the copies of the state that the row has beyond the one where it ends; with `keep` 0, that too."""
        cdef int32_t usable = 0
        if self.num_state_blocks > 0:
            usable = self.c_drop_states(row, keep == 0)
        return usable + GroupTable.c_drop_blocks(self, row, keep)

    cdef void c_hold_state(self, const int32_t *blocks) noexcept nogil:
        """One more reference to each block of a state, which a row has."""
        if self.num_state_blocks > 0 and blocks[0] != ZERO_BLOCK:
            self.pool.c_share(blocks, self.num_state_blocks)

    cdef int32_t c_lowest_cut(self, int32_t row) noexcept nogil:
        """With a state, a row can be cut only where it is."""
        return self.rows[row].position if self.num_state_blocks > 0 else GroupTable.c_lowest_cut(self, row)

    cdef dict c_references(self):
        """Also states, and spare copies."""
        cdef dict references = GroupTable.c_references(self)
        cdef int32_t row, j
        for row in range(self.max_sequences):
            for j in range((self.num_spare[row] + 1) * self.num_state_blocks):
                block = self.c_state(row)[j]
                if block != ZERO_BLOCK:
                    references[block] = references.get(block, 0) + 1
        return references

    cdef int c_check(self) except -1:
        cdef int32_t row, j, block
        cdef int32_t *state
        cdef bint begun
        GroupTable.c_check(self)
        for row in range(self.max_sequences if self.num_state_blocks > 0 else 0):
            state = self.c_state(row)
            require(0 <= self.num_spare[row] <= self.num_buffers + 1,
                    f"row {row} has {self.num_spare[row]} spare copies of its state")
            begun = self.rows[row].state != VACANT and self.rows[row].end > self.rows[row].pad
            for j in range((self.num_buffers + 2) * self.num_state_blocks):
                block = state[j]
                if self.rows[row].state != SWAPPED:
                    require((block != ZERO_BLOCK)
                            == (begun if j < self.num_state_blocks
                                else j < (self.num_spare[row] + 1) * self.num_state_blocks),
                            f"entry {j} of the states of row {row} is {block}")
                if block != ZERO_BLOCK:
                    require(self.pool.records[block].node == NO_NODE, f"block {block} of a state is published")
                    require(j < self.num_state_blocks or self.pool.records[block].refcount == 1,
                            f"block {block} of a spare state of row {row} is shared")
        return 0
