"""Opening a step, and closing it without a trace: extend, can_extend, abandon. Committing is commit_table's.

A verb first checks and counts, raising before anything is touched; then it does, in a nogil part that
cannot fail. No Python object is made between the two, or a finalizer could call a verb in the middle.

Open steps hold their rows. A step keeps the source of each copy, with its reference, until it closes, and
a row released meanwhile stays, doomed; so abandon can put everything back, and work still running on a
step's arrays reads no reused block.
"""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free

from pagedcache.core.arguments cimport Int32s, Int64s, counts_of, handles_of, int32s_of
from pagedcache.core.demand_table cimport Demand
from pagedcache.core.row_table cimport DOOMED, VACANT, RowTable
from pagedcache.core.step cimport Step
from pagedcache.core.step_buffers cimport GroupArrays, StepArrays, StepBuffers
from pagedcache.core.step_filler cimport StepFiller

from pagedcache.core._checks import require
from pagedcache.errors import StepBusy, StepClosed


@cython.no_gc_clear
cdef class StepTable(StepFiller):
    """The verbs that open steps, and abandon; see SequenceTable."""

    def __cinit__(
        self, pool, block_size, *, max_sequences=256, max_length=None, steps_in_flight=1, int tag_bits=64, events=None,
        fingerprint=b"", max_pinned=None, side_groups=(), max_step_tokens=None, state_blocks=()
    ):
        self.serials = <int64_t *>calloc(self.num_buffers, sizeof(int64_t))
        if not self.serials:
            raise MemoryError(f"no memory for {steps_in_flight} steps")

    def __dealloc__(self):
        cdef int32_t k
        if self.pool is not None:
            with cython.critical_section(self.pool):
                for k in range(self.num_open):
                    self.c_drop_sources(self.group_arrays[self.order[k]])
                for k in range(self.num_deferred):
                    self.pool.c_decref(self.deferred[k].block)
        free(self.serials)
        free(self.deferred)

    @property
    def steps_in_flight(self):
        """Most steps that can be open at a time."""
        return self.num_buffers

    @property
    def open_steps(self):
        """The steps that are neither committed nor abandoned, oldest first."""
        with cython.critical_section(self.pool):
            return tuple([self.c_buffers(k).step for k in range(self.num_open)])

    def can_extend(self, ids, counts, *, depths=None, cascade=False):
        """Whether `extend` with the same arguments would find enough blocks now; other errors alike."""
        cdef Demand demand
        cdef StepBuffers buffers
        cdef Int64s handles = handles_of(ids)
        cdef Int32s new = counts_of(counts, handles.n, "counts")
        cdef Int32s tree = None if depths is None else int32s_of(depths, "depths")
        with cython.critical_section(self.pool):
            buffers = self.c_spare()
            demand = self.c_demanded(buffers, handles, new, tree)
            self.c_forgo(&demand)
            return demand.blocks <= self.pool.c_usable()

    def extend(self, ids, counts, *, depths=None, cascade=False):
        """Slots for new tokens of each sequence: opens a step.

        Allocates what lies beyond the blocks a row has, and replaces a shared or published last block
        by a fresh one, named in ``step.copies``. Nothing is matchable before `commit`. A sequence of an
        open step goes on from where that step leaves it.

        Parameters
        ----------
        ids : int64 [n]
            Handles, each once.
        counts : int32 [n] or int
            New tokens of each sequence, 0 or more.
        depths : int32 [tokens], optional
            For trees of tokens: how far each new token lies beyond the sequence's end, from 0, less than
            the sequence's count. ``step.positions`` follow them; slots do not. By default 0, 1, 2, ...
        cascade : bool
            Also find which adjacent sequences share leading blocks: ``step.shared_prefixes``.

        Returns
        -------
        Step

        Raises
        ------
        OutOfBlocks
            Too few usable blocks (`can_extend` asks with the same code).
        StepBusy
            ``steps_in_flight`` steps are open.
        InvalidSequence
            A handle names no live sequence.
        SwappedOut
            A sequence is swapped out.
        ValueError
            A handle is named twice, a count is negative or, where windows are, above max_step_tokens, a sequence would
            grow beyond max_length, or a depth is out of range. Whatever is raised, nothing was changed.
        """
        cdef Demand demand
        cdef Step step
        cdef StepBuffers buffers
        cdef Int64s handles = handles_of(ids)
        cdef Int32s new = counts_of(counts, handles.n, "counts")
        cdef Int32s tree = None if depths is None else int32s_of(depths, "depths")
        cdef bint find_shared = cascade
        with cython.critical_section(self.pool):
            # Any allocation may run a finalizer, and that may call a verb: so the step is made before the
            # rows are named, and what had to grow is followed by a fresh count.
            step = Step.__new__(Step)
            step.block_size = self.block_size
            step.owner = self
            while True:
                buffers = self.c_spare()
                demand = self.c_demanded(buffers, handles, new, tree)
                if demand.blocks > self.pool.c_usable():
                    self.c_forgo(&demand)
                    raise self.c_out_of_blocks("extend", demand.blocks, "release or truncate sequences")
                if self.c_has_room(buffers, &demand):
                    break
                self.c_forgo(&demand)
                self.is_growing = True      # a finalizer that extends meanwhile would fill arrays that are replaced
                try:
                    self.c_widen(demand.width)
                    buffers.c_fit(demand.width, demand.tokens, demand.copies, demand.blocks)
                finally:
                    self.is_growing = False
            self.pool.c_make_vacant(<int32_t>demand.blocks)
            self.c_fill(buffers, &demand)
            if tree is not None and demand.tokens > 0:
                self.c_set_depths(buffers, tree.data)
            if find_shared:
                self.c_find_shared(buffers)
            self.pool.c_note_peak()
            step.buffers = buffers
            step.group = buffers.group
            buffers.step = step
            self.serial += 1
            self.serials[self.num_open] = self.serial
            self.num_open += 1
            return step

    cdef StepBuffers c_spare(self):
        """The buffers that the next step will have: those that were closed last, which show most already."""
        if self.is_growing:
            raise StepBusy("another extend is making room for its step; extend again when it has returned")
        if self.num_open == self.num_buffers:
            raise StepBusy(
                f"{self.num_open} steps are open (steps_in_flight is {self.num_buffers}): commit or abandon one "
                "first; open_steps has them"
            )
        return self.c_buffers(self.num_open)

    cdef Demand c_demanded(
        self, StepBuffers buffers, Int64s handles, Int32s counts, Int32s depths
    ) except *:
        """c_demand, or the error for what is wrong with an entry, and then nothing is changed."""
        cdef int32_t i, k, first
        cdef Demand demand = self.c_demand(
            buffers, handles.data, counts.data, counts.n == handles.n, handles.n
        )
        if demand.wrong >= 0 or demand.tokens > INT32_MAX:
            self.c_forgo(&demand)
            self.c_refuse_demand(handles, &demand)
        if depths is None:
            return demand
        if depths.n != demand.tokens:
            self.c_forgo(&demand)
            raise ValueError(f"depths has {depths.n} entries for {demand.tokens} tokens")
        for i in range(demand.rows):
            first = buffers.c.qo_indptr[i]
            for k in range(self.counts[i]):
                if not 0 <= depths.data[first + k] < self.counts[i]:
                    self.c_forgo(&demand)
                    raise ValueError(
                        f"depths holds {depths.data[first + k]} at {first + k}; sequence {i} has {self.counts[i]} new "
                        f"tokens, so that depths are 0 to {self.counts[i] - 1}"
                    )
        return demand

    cdef int c_refuse_demand(self, Int64s handles, const Demand *demand) except -1:
        cdef int32_t i = demand.wrong, end
        if i < 0:
            raise ValueError(f"{demand.tokens} tokens are too many for one step, which counts in int32")
        if not demand.too_long:
            self.c_refuse(handles.data[i], i)
        if self.counts[i] < 0:
            raise ValueError(f"counts holds {self.counts[i]} at {i}; it must be 0 to {INT32_MAX}")
        if 0 < self.max_step_tokens < self.counts[i]:
            raise ValueError(
                f"counts holds {self.counts[i]} at {i}; max_step_tokens is {self.max_step_tokens}, by which windows "
                "keep their blocks: give the tokens in more steps"
            )
        end = self.rows[self.named[i]].end
        raise ValueError(
            f"{self.counts[i]} tokens at position {end} (entry {i}) make {<int64_t>end + self.counts[i]}, beyond "
            f"max_length {self.max_length}"
        )

    # -- closing without a trace ----------------------------------------------------------------------------------

    def abandon(self, Step step not None):
        """Close the newest open step as if it never was; only evictions stay.

        Parameters
        ----------
        step : Step
            The newest open step. Its sequences are where they were before it; those released meanwhile stay so.

        Raises
        ------
        StepClosed
            The step is closed, or not the newest.
        ValueError
            It is the step of another table, or was made from arrays.
        """
        cdef StepBuffers buffers
        cdef StepArrays *arrays
        cdef int32_t i, row, side
        with cython.critical_section(self.pool, step):
            self.c_require_open(step, oldest=False)
            buffers = step.buffers
            arrays = &buffers.c
            for i in range(arrays.num_sequences - 1, -1, -1):
                row = arrays.held_rows[i]
                self.rows[row].clean = 0    # whoever replays the diffs may never have seen this step's
                for side in range(self.num_sides):
                    self.sides[side].clean[row] = 0
                self.c_hide(row)
                self.rows[row].end -= arrays.qo_indptr[i + 1] - arrays.qo_indptr[i]
                self.c_take_back(buffers, i, 0)
            self.c_take_back_copies(buffers)
            if self.num_state_blocks > 0:
                self.c_take_back_states(arrays)
            for i in range(arrays.num_sequences):
                self.c_finish_row(arrays.held_rows[i])
            self.c_close(step)

    cdef void c_take_back(self, StepBuffers buffers, int32_t i, int32_t keep) noexcept nogil:
        """Drop what the step appended to its sequence i beyond entry `keep`."""
        cdef int32_t row = buffers.c.held_rows[i], side
        cdef GroupArrays *group = &buffers.group.c
        RowTable.c_drop_blocks(self, row, max(keep, self.rows[row].num_blocks - group.appended[i]))
        for side in range(self.num_sides):
            group = group.next
            self.c_drop_side(side, row, max(keep, self.sides[side].filled[row] - group.appended[i]))

    cdef void c_take_back_copies(self, StepBuffers buffers) noexcept nogil:
        """Give the rows, whose ends are back, their source blocks again."""
        cdef GroupArrays *group = &buffers.group.c
        cdef int32_t pair, row, side = -1
        cdef int32_t *table
        cdef int32_t *have
        while group != NULL:
            for pair in range(group.num_copies - 1, -1, -1):
                row = buffers.c.held_rows[group.copiers[pair]]
                table = self.c_side_table(side, row)
                have = &self.rows[row].num_blocks if side < 0 else &self.sides[side].filled[row]
                if self.rows[row].partial == self.rows[row].end:    # behind the others it waits again
                    table[have[0]] = group.copies[2 * pair + 1]
                    have[0] += 1
                else:
                    self.pool.c_decref(group.copies[2 * pair + 1])
                table[self.c_block_of(self.rows[row].end)] = group.copies[2 * pair]
                self.num_copies -= 1
            group.num_copies = 0
            side += 1
            group = group.next

    cdef void c_drop_sources(self, GroupArrays *group) noexcept nogil:
        """Drop a step's references to the sources of its copies."""
        cdef int32_t pair
        while group != NULL:
            for pair in range(group.num_copies):
                self.pool.c_decref(group.copies[2 * pair])
            group.num_copies = 0
            group = group.next

    cdef int c_require_open(self, Step step, bint oldest) except -1:
        if step.owner is not self:
            raise ValueError("the step belongs to another table, or was made from arrays")
        if step.buffers is None:
            raise StepClosed("this step was committed or abandoned before")
        if step.buffers is not self.c_buffers(0 if oldest else self.num_open - 1):
            raise StepClosed(
                "an older step is open: steps are committed oldest first (open_steps has them in order)" if oldest
                else "a newer step is open: steps are abandoned newest first (open_steps has them in order)"
            )
        return 0

    cdef inline void c_finish_row(self, int32_t row) noexcept nogil:
        """One step less holds the row; the last one takes a released row along."""
        self.rows[row].holds -= 1
        if self.rows[row].holds == 0 and self.rows[row].state == DOOMED:
            self.c_drop_blocks(row, 0)
            self.c_close_row(row)

    cdef int c_close(self, Step step) except -1:
        """Shut the step's view; drop what waited for it. The caller has the step's critical section too."""
        cdef StepBuffers buffers = step.buffers
        cdef int32_t k, done = 0, first = 0 if buffers.number == self.order[0] else self.num_open - 1
        self.num_open -= 1
        for k in range(first, self.num_open):
            self.order[k] = self.order[k + 1]
            self.serials[k] = self.serials[k + 1]
        self.order[self.num_open] = buffers.number
        while done < self.num_deferred and (self.num_open == 0 or self.deferred[done].step < self.serials[0]):
            self.pool.c_decref(self.deferred[done].block)
            done += 1
        self.num_deferred -= done
        for k in range(self.num_deferred if done > 0 else 0):
            self.deferred[k] = self.deferred[k + done]
        step.c_shut()
        buffers.step = None
        return 0

    cdef dict c_references(self):
        """Also what open steps hold: a reference to the source of each copy, and what was given up meanwhile."""
        cdef dict references = StepFiller.c_references(self)
        cdef int32_t pair, k
        cdef const GroupArrays *group
        for k in range(self.num_open):
            group = self.group_arrays[self.order[k]]
            while group != NULL:
                for pair in range(group.num_copies):
                    source = group.copies[2 * pair]
                    references[source] = references.get(source, 0) + 1
                group = group.next
        for k in range(self.num_deferred):
            references[self.deferred[k].block] = references.get(self.deferred[k].block, 0) + 1
        return references

    cdef int c_check(self) except -1:
        cdef int32_t row, k, i
        cdef dict holds = {}
        cdef StepBuffers buffers
        StepFiller.c_check(self)
        for k in range(self.num_open):
            buffers = self.c_buffers(k)
            for i in range(buffers.c.num_sequences):
                holds[buffers.c.held_rows[i]] = holds.get(buffers.c.held_rows[i], 0) + 1
        for row in range(self.max_sequences):
            if self.rows[row].state != VACANT:
                require(self.rows[row].holds == holds.get(row, 0),
                        f"row {row} is held by {self.rows[row].holds} steps, not {holds.get(row, 0)}")
                require(self.rows[row].holds > 0 or self.rows[row].end == self.rows[row].position,
                        f"row {row} ends at {self.rows[row].end} without an open step")
        return 0
