"""Sequences that share what they have in common: fork and reorder. Copies happen at the first write."""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pagedcache.core.arguments cimport Int32s, Int64s, handles_of, new_int64s, own_counts, own_int32s
from pagedcache.core.compact_table cimport CompactTable
from pagedcache.core.key_table cimport RowKeys
from pagedcache.core.row_table cimport CLOSED, Row

from pagedcache.core.arguments import bounded_int
from pagedcache.errors import OutOfSequences, PositionReleased


@cython.no_gc_clear
cdef class ShareTable(CompactTable):
    """The verbs that share sequences; see SequenceTable."""

    def fork(self, ids, n=1, at=None):
        """New sequences that share every block up to a position; copies happen at the first write.

        Parameters
        ----------
        ids : int64 [m]
            Parents, each once; they stay.
        n : int
            Children per parent.
        at : int or int32 [m], optional
            Position to fork at, from the pad to the parent's position (the default).

        Returns
        -------
        int64 [m, n]
            Handles of the children.

        Raises
        ------
        OutOfSequences
            Fewer than m * n rows are vacant.
        InvalidSequence, SwappedOut, StepOpen
            A handle names no live sequence, one that is swapped out, or one in an open step.
        PositionReleased
            A window has let blocks go that a query at the position would see, or the table keeps states, which are
            those of the present position.
        ValueError
            A handle is named twice, or a position lies before the pad or beyond the sequence.
        """
        cdef int64_t per_parent = bounded_int(n, "n", 0, INT32_MAX)
        cdef Int64s handles = handles_of(ids)
        cdef Int32s cuts = None if at is None else own_counts(at, handles.n, "at")
        cdef int64_t wanted = handles.n * per_parent
        cdef Py_ssize_t i, k
        if handles.n > 0 and per_parent > self.max_sequences:
            raise OutOfSequences(f"n is {n}; the cache has {self.max_sequences} rows (max_sequences)")
        cdef int64_t *handle
        children = new_int64s(handles.n * per_parent, &handle)
        with cython.critical_section(self.pool):
            self.c_name(handles, CLOSED)
            self.c_check_cuts(cuts, handles.n, "at")
            if wanted > self.num_vacant:
                raise OutOfSequences(
                    f"{wanted} rows wanted, {self.num_vacant} of {self.max_sequences} are "
                    "vacant; release sequences, or make the cache with a larger max_sequences"
                )
            for i in range(handles.n):
                for k in range(per_parent):
                    handle[i * per_parent + k] = self.c_fork(self.named[i], self.c_cut(cuts, i))
        return children.reshape(handles.n, per_parent)

    cdef int64_t c_fork(self, int32_t row, int32_t cut) noexcept nogil:
        """Handle of a new row that shares the blocks of `row` up to position `cut`."""
        cdef int32_t child
        self.c_publish_rest(row)
        child = self.c_open_row()
        cdef int32_t blocks = self.c_blocks_for(cut), side
        cdef int32_t *table = self.c_table(child)
        memcpy(table, self.c_table(row), blocks * sizeof(int32_t))
        self.pool.c_share(table, blocks)
        for side in range(self.num_sides):
            table = self.c_side_table(side, child)
            memcpy(table, self.c_side_table(side, row), blocks * sizeof(int32_t))
            self.c_share_side(side, table, blocks, self.sides[side].first[row], self.rows[row].pad)
            self.sides[side].filled[child] = blocks
            self.sides[side].first[child] = self.sides[side].first[row]
        self.c_hold_state(self.c_state(row))
        memcpy(self.c_state(child), self.c_state(row), self.num_state_blocks * sizeof(int32_t))
        self.rows[child].num_blocks = blocks
        self.c_place(child, cut)
        self.rows[child].pad = self.rows[row].pad
        self.rows[child].keys = self.keys.c_share(self.rows[row].keys)
        self.rows[child].level = self.rows[row].level
        self.rows[child].publishes = self.rows[row].publishes and self.c_is_settled(row, cut)
        self.rows[child].node = self.rows[row].node
        self.rows[child].num_published = self.rows[row].num_published
        self.c_unpublish_row(child, self.c_block_of(cut))
        return self.c_handle(child)

    def reorder(self, ids, parents):
        """Beam step: sequence i goes on from where ``ids[parents[i]]`` is; handles stay.

        Only tables and references change; copies happen at the first write.

        Parameters
        ----------
        ids : int64 [n]
            Sequences, each once.
        parents : int32 [n]
            For each of them an index into `ids`; one may be named more than once, or never.

        Raises
        ------
        InvalidSequence, SwappedOut, StepOpen
            A handle names no live sequence, one that is swapped out, or one in an open step.
        ValueError
            A handle is named twice, or an entry of `parents` is no index into `ids`.

        Notes
        -----
        A sequence that goes on from another gives up what admit had allotted to it beyond its position.
        """
        cdef Int64s handles = handles_of(ids)
        cdef Int32s sources = own_int32s(parents, "parents")
        cdef Py_ssize_t n = handles.n
        cdef int32_t i
        cdef int32_t *scratch       # [num_sides + 1, n, pitch] tables, [num_sides, n] first entries, [n, ..] states
        cdef Row *former
        if sources.n != n:
            raise ValueError(f"parents has {sources.n} entries for {n} sequences")
        for i in range(n):
            if not 0 <= sources.data[i] < n:
                raise ValueError(f"parents holds {sources.data[i]} at {i}; it must be an index into ids, 0 to {n - 1}")
        with cython.critical_section(self.pool):
            self.c_name(handles, CLOSED)
            former = <Row *>malloc(n * sizeof(Row) + 1)
            scratch = <int32_t *>malloc(
                ((self.num_sides + 1) * <size_t>self.pitch + self.num_sides + self.num_state_blocks)
                * n * sizeof(int32_t) + 1
            )
            if not former or not scratch:
                free(former)
                free(scratch)
                raise MemoryError(f"no memory to reorder {n} sequences of up to {self.pitch} blocks")
            self.c_reorder(sources.data, <int32_t>n, former, scratch)
            free(former)
            free(scratch)

    cdef void c_reorder(self, const int32_t *parents, int32_t n, Row *former, int32_t *scratch) noexcept nogil:
        """Rows that change parents take references first, then let go of their own."""
        cdef int32_t i, row, blocks, side
        cdef int32_t *first = scratch + (self.num_sides + <size_t>1) * n * self.pitch
        cdef int32_t *states = first + <size_t>self.num_sides * n
        cdef int32_t state_blocks = self.num_state_blocks
        cdef RowKeys *own_keys
        for i in range(n):
            self.c_publish_rest(self.named[i])
        for i in range(n):
            row = self.named[i]
            former[i] = self.rows[row]
            blocks = self.c_blocks_for(former[i].position)
            for side in range(-1, self.num_sides):
                memcpy(
                    scratch + (<size_t>(side + 1) * n + i) * self.pitch, self.c_side_table(side, row),
                    blocks * sizeof(int32_t)
                )
            for side in range(self.num_sides):
                first[side * n + i] = self.sides[side].first[row]
            memcpy(states + <size_t>i * state_blocks, self.c_state(row), state_blocks * sizeof(int32_t))
        for i in range(n):
            if parents[i] != i:
                blocks = self.c_blocks_for(former[parents[i]].position)
                self.pool.c_share(scratch + <size_t>parents[i] * self.pitch, blocks)
                for side in range(self.num_sides):
                    self.c_share_side(
                        side, scratch + (<size_t>(side + 1) * n + parents[i]) * self.pitch, blocks,
                        first[side * n + parents[i]], former[parents[i]].pad
                    )
                self.c_hold_state(states + <size_t>parents[i] * state_blocks)
        for i in range(n):
            row = self.named[i]
            if parents[i] == i:
                continue
            own_keys = self.rows[row].keys
            self.c_drop_blocks(row, 0)
            blocks = self.c_blocks_for(former[parents[i]].position)
            for side in range(-1, self.num_sides):
                memcpy(
                    self.c_side_table(side, row), scratch + (<size_t>(side + 1) * n + parents[i]) * self.pitch,
                    blocks * sizeof(int32_t)
                )
            for side in range(self.num_sides):
                self.sides[side].filled[row] = blocks
                self.sides[side].first[row] = first[side * n + parents[i]]
            memcpy(self.c_state(row), states + <size_t>parents[i] * state_blocks, state_blocks * sizeof(int32_t))
            self.rows[row].num_blocks = blocks
            self.c_place(row, former[parents[i]].position)
            self.rows[row].pad = former[parents[i]].pad
            self.rows[row].node = former[parents[i]].node
            self.rows[row].num_published = former[parents[i]].num_published
            self.rows[row].publishes = former[parents[i]].publishes
            self.rows[row].level = former[parents[i]].level
            self.rows[row].keys = self.keys.c_share(former[parents[i]].keys)
            former[i].keys = own_keys
        for i in range(n):      # last, since a row that went on from this one has shared them by then
            if parents[i] != i:
                self.keys.c_leave(former[i].keys)

    cdef inline bint c_is_settled(self, int32_t row, int32_t cut) noexcept nogil:
        """Whether what is left up to `cut` is still what the row's keys say."""
        return self.rows[row].keys == NULL or cut >= self.rows[row].keys.settled

    cdef int32_t c_cut(self, Int32s cuts, Py_ssize_t i) noexcept nogil:
        """Position to cut named row i at; no cuts: where it is; one: the same for all."""
        if cuts is None:
            return self.rows[self.named[i]].position
        return cuts.data[i if i < cuts.n else 0]

    cdef int c_check_cuts(self, Int32s cuts, Py_ssize_t n, str name) except -1:
        cdef Py_ssize_t i
        cdef int32_t lowest
        cdef Row *row
        for i in range(n):
            row = &self.rows[self.named[i]]
            lowest = self.c_lowest_cut(self.named[i]) if self.num_sides + self.num_state_blocks > 0 else row.pad
            if row.pad <= self.c_cut(cuts, i) < lowest and self.c_cut(cuts, i) < row.position:
                raise PositionReleased(
                    f"{name} is {self.c_cut(cuts, i)} for entry {i}; " + (
                        "a state cannot be rolled back" if self.num_state_blocks > 0
                        else "a window has let blocks go that a query there would see"
                    ) + f": the lowest position left is {min(lowest, row.position)}"
                )
            if not row.pad <= self.c_cut(cuts, i) <= row.position:
                raise ValueError(
                    f"{name} is {self.c_cut(cuts, i)} for entry {i}; it must be {row.pad} (the pad) to {row.position} "
                    "(the position)"
                )
        return 0
