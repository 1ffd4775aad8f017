"""What a step does with states of fixed size: it reads one copy and writes another.

    extend     state_in: the row's state, whose references are the step's from here on
               state_out: a copy of the row's own, which is its state from here on; -1 where it has no new tokens
    commit     gives up what was read
    abandon    gives up what was written; what was read is the row's state again

Steps are committed oldest first and abandoned newest first, so that what a step has written is what the next one reads.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from pagedcache.core.demand_table cimport DemandTable
from pagedcache.core.records cimport ZERO_BLOCK
from pagedcache.core.row_table cimport LIVE
from pagedcache.core.step_buffers cimport StepArrays

from pagedcache.core._checks import require
from pagedcache.errors import PositionReleased


@cython.no_gc_clear
cdef class StateSteps(DemandTable):
    """Rows whose states open steps read and write; see StepTable."""

    def __dealloc__(self):
        cdef int32_t k, j
        cdef const StepArrays *arrays
        if self.pool is not None and self.num_state_blocks > 0:
            with cython.critical_section(self.pool):
                for k in range(self.num_open):
                    arrays = self.step_arrays[self.order[k]]
                    for j in range(arrays.num_sequences * self.num_state_blocks):
                        if arrays.state_out[j] >= 0 and arrays.state_in[j] != ZERO_BLOCK:
                            self.pool.c_decref(arrays.state_in[j])

    cdef void c_fill_states(self, const StepArrays *arrays, int32_t rows) noexcept nogil:
        """Write what the named rows read, and give those with new tokens a copy to write."""
        cdef int32_t blocks = self.num_state_blocks, i, k
        cdef int32_t *before = arrays.state_in
        cdef int32_t *after = arrays.state_out
        cdef int32_t *state
        for i in range(rows):
            state = self.c_state(self.named[i])
            memcpy(before, state, blocks * sizeof(int32_t))
            if self.counts[i] > 0:
                self.c_take_state(self.named[i])
            for k in range(blocks):
                after[k] = state[k] if self.counts[i] > 0 else -1
            before += blocks
            after += blocks

    cdef void c_take_back_states(self, const StepArrays *arrays) noexcept nogil:
        """The rows have the states again that the step has read; it is the newest."""
        cdef int32_t i
        for i in range(arrays.num_sequences):
            if arrays.state_out[i * <size_t>self.num_state_blocks] >= 0:
                self.c_take_back_state(arrays, i)

    cdef void c_take_back_state(self, const StepArrays *arrays, int32_t i) noexcept nogil:
        cdef int32_t row = arrays.held_rows[i], blocks = self.num_state_blocks
        self.c_put_aside(row, self.c_state(row))
        memcpy(self.c_state(row), arrays.state_in + i * <size_t>blocks, blocks * sizeof(int32_t))

    cdef void c_commit_states(self, const StepArrays *arrays, const int64_t *ends) noexcept nogil:
        """What the step has written counts; of rows that accept none of their tokens (`ends`), what it has read."""
        cdef int32_t i, row
        for i in range(arrays.num_sequences):
            row = arrays.held_rows[i]
            if arrays.state_out[i * <size_t>self.num_state_blocks] < 0:
                continue
            if ends != NULL and ends[i] == ends[i + 1] and self.rows[row].state == LIVE:    # then no newer step has it
                self.c_take_back_state(arrays, i)
            else:
                self.c_put_aside(row, arrays.state_in + i * <size_t>self.num_state_blocks)

    cdef int c_require_whole(self, const StepArrays *arrays, const int64_t[::1] ends) except -1:
        """A live row accepts all of its new tokens, or none: there is no state in between."""
        cdef int32_t i
        cdef int64_t kept
        for i in range(arrays.num_sequences):
            kept = ends[i + 1] - ends[i]
            if (0 < kept < arrays.qo_indptr[i + 1] - arrays.qo_indptr[i]
                    and self.rows[arrays.held_rows[i]].state == LIVE):
                raise PositionReleased(
                    f"accepted has {kept} of {arrays.qo_indptr[i + 1] - arrays.qo_indptr[i]} new tokens of handle "
                    f"{arrays.ids[i]} (entry {i}); a state cannot be rolled back to a token within a step: accept all "
                    "or none"
                )
        return 0

    cdef int64_t c_held_states(self, int32_t first, int32_t stop) noexcept nogil:
        """Entries that name a block of a state, of those from `first` to `stop` of a copy; all copies of all rows."""
        cdef int64_t held = 0
        cdef int32_t row, k, i, j, blocks = self.num_state_blocks
        cdef const StepArrays *arrays
        for row in range(self.max_sequences):
            for k in range(self.num_spare[row] + 1):
                for j in range(first, stop):
                    held += self.c_state(row)[k * blocks + j] != ZERO_BLOCK
        for k in range(self.num_open):
            arrays = self.step_arrays[self.order[k]]
            for i in range(arrays.num_sequences):
                for j in range(i * blocks + first, i * blocks + stop):
                    held += arrays.state_out[j] >= 0 and arrays.state_in[j] != ZERO_BLOCK
        return held

    cdef dict c_references(self):
        """Also the states that open steps read, where they write others."""
        cdef dict references = DemandTable.c_references(self)
        cdef int32_t k, j
        cdef const StepArrays *arrays
        for k in range(self.num_open):
            arrays = self.step_arrays[self.order[k]]
            for j in range(arrays.num_sequences * self.num_state_blocks):
                if arrays.state_out[j] >= 0 and arrays.state_in[j] != ZERO_BLOCK:
                    references[arrays.state_in[j]] = references.get(arrays.state_in[j], 0) + 1
        return references

    cdef int c_check(self) except -1:
        """What a step reads is what the one before it has written; what open steps write is the row's alone."""
        cdef int32_t k, i, j, row, blocks = self.num_state_blocks
        cdef const StepArrays *arrays
        cdef dict written = {}
        DemandTable.c_check(self)
        for k in range(self.num_open if blocks > 0 else 0):
            arrays = self.step_arrays[self.order[k]]
            for i in range(arrays.num_sequences):
                row = arrays.held_rows[i]
                for j in range(blocks):
                    before, after = arrays.state_in[i * blocks + j], arrays.state_out[i * blocks + j]
                    require(written.get((row, j), before) == before,
                            f"an open step reads block {before} of a state of row {row}, not what was written")
                    if after >= 0:
                        require(self.pool.records[<int32_t>after].refcount == 1,
                                f"block {after} of a state, which an open step writes, is shared")
                        written[row, j] = after
        for (row, j), after in written.items():
            require(self.c_state(row)[j] == after, f"the state of row {row} is not what its newest step writes")
        return 0
