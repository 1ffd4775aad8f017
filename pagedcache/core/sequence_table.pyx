"""The verbs over whole sequences: fork, reorder, truncate, release; and looking."""

cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pagedcache.core.arguments cimport Int32s, Int64s, handles_of, new_int64s, own_counts, own_int32s
from pagedcache.core.key_table cimport RowKeys
from pagedcache.core.compact_table cimport CompactTable
from pagedcache.core.row_table cimport ANY, CLOSED, DOOMED, LIVE, OPEN_OR_CLOSED, SWAPPED, Row

import numpy as np

from pagedcache.core.arguments import bounded_int
from pagedcache.core.results import CacheStats
from pagedcache.errors import OutOfSequences


@cython.no_gc_clear
cdef class SequenceTable(CompactTable):
    """Block tables of many sequences over one pool, with a prefix index; no K/V bytes.

    Parameters
    ----------
    pool : BlockPool
        A pool of this table's own.
    block_size : int
        Tokens per block, 1..1024.
    max_sequences, max_length : int, optional
        Live sequences at a time; most positions of one, by default what the pool can hold.
    steps_in_flight : int
        Most steps that can be open at a time, 1 to 8.
    events : {None, "digests", "tokens"}
        Whether to record what the prefix cache stores and removes, for `events`; with token ids or without.
    fingerprint : bytes
        Identity of weights, RoPE settings and adapter, for the digests of events.
    max_pinned : int, optional
        Most blocks that all pins together hold; by default half of the pool.

    Notes
    -----
    Handles are int64. All lengths and positions are row coordinates: left pads count. Every call is guarded by the
    pool's critical section and either succeeds or changes nothing.

    Examples
    --------
    >>> from pagedcache.core import BlockPool
    >>> table = SequenceTable(BlockPool(8), block_size=4)
    >>> ids = table.admit([[5, 6, 7, 8, 9]]).ids
    >>> step = table.extend(ids, [5])
    >>> step.slots
    array([16, 17, 18, 19, 20])
    >>> table.commit(step, [5, 6, 7, 8, 9])     # one full block can be found from here on
    1
    >>> table.match([[5, 6, 7, 8, 1]])
    array([4], dtype=int32)
    """

    # -- sharing, rolling back, letting go --------------------------------------------------------

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
        cdef int32_t blocks = self.c_blocks_for(cut)
        cdef int32_t *table = self.c_table(child)
        memcpy(table, self.c_table(row), blocks * sizeof(int32_t))
        self.pool.c_share(table, blocks)
        self.rows[child].num_blocks = blocks
        self.rows[child].position = cut
        self.rows[child].end = cut
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
        cdef int32_t *scratch
        cdef Row *former
        if sources.n != n:
            raise ValueError(f"parents has {sources.n} entries for {n} sequences")
        for i in range(n):
            if not 0 <= sources.data[i] < n:
                raise ValueError(f"parents holds {sources.data[i]} at {i}; it must be an index into ids, 0 to {n - 1}")
        with cython.critical_section(self.pool):
            self.c_name(handles, CLOSED)
            former = <Row *>malloc(n * sizeof(Row) + 1)
            scratch = <int32_t *>malloc(n * <size_t>self.pitch * sizeof(int32_t) + 1)
            if not former or not scratch:
                free(former)
                free(scratch)
                raise MemoryError(f"no memory to reorder {n} sequences of up to {self.pitch} blocks")
            self.c_reorder(sources.data, <int32_t>n, former, scratch)
            free(former)
            free(scratch)

    cdef void c_reorder(self, const int32_t *parents, int32_t n, Row *former, int32_t *scratch) noexcept nogil:
        """Rows that change parents take references first, then let go of their own."""
        cdef int32_t i, row, blocks
        cdef RowKeys *own_keys
        for i in range(n):
            self.c_publish_rest(self.named[i])
        for i in range(n):
            row = self.named[i]
            former[i] = self.rows[row]
            memcpy(scratch + <size_t>i * self.pitch, self.c_table(row), former[i].num_blocks * sizeof(int32_t))
        for i in range(n):
            if parents[i] != i:
                self.pool.c_share(
                    scratch + <size_t>parents[i] * self.pitch, self.c_blocks_for(former[parents[i]].position)
                )
        for i in range(n):
            row = self.named[i]
            if parents[i] == i:
                continue
            own_keys = self.rows[row].keys
            self.c_drop_blocks(row, 0)
            blocks = self.c_blocks_for(former[parents[i]].position)
            memcpy(self.c_table(row), scratch + <size_t>parents[i] * self.pitch, blocks * sizeof(int32_t))
            self.rows[row].num_blocks = blocks
            self.rows[row].position = former[parents[i]].position
            self.rows[row].end = former[parents[i]].position
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

    def truncate(self, ids, positions):
        """Roll back to earlier positions; the index keeps what was published.

        Blocks beyond the new position are dropped, those that admit had allotted included.

        Parameters
        ----------
        ids : int64 [n]
        positions : int or int32 [n]
            New next positions, from the pad to the present position.

        Returns
        -------
        int
            Blocks that became usable.

        Raises
        ------
        InvalidSequence, SwappedOut, StepOpen
            A handle names no live sequence, one that is swapped out, or one in an open step.
        ValueError
            A handle is named twice, or a position lies before the pad or beyond the sequence.
        """
        cdef Int64s handles = handles_of(ids)
        cdef Int32s cuts = own_counts(positions, handles.n, "positions")
        cdef Py_ssize_t i
        cdef int32_t row, cut, usable = 0
        with cython.critical_section(self.pool):
            self.c_name(handles, CLOSED)
            self.c_check_cuts(cuts, handles.n, "positions")
            for i in range(handles.n):
                row = self.named[i]
                cut = self.c_cut(cuts, i)
                usable += self.c_drop_blocks(row, self.c_blocks_for(cut))
                self.c_unpublish_row(row, self.c_block_of(cut))
                self.rows[row].publishes = self.rows[row].publishes and self.c_is_settled(row, cut)
                self.rows[row].position = cut
                self.rows[row].end = cut
        return usable

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
        cdef Row *row
        for i in range(n):
            row = &self.rows[self.named[i]]
            if not row.pad <= self.c_cut(cuts, i) <= row.position:
                raise ValueError(
                    f"{name} is {self.c_cut(cuts, i)} for entry {i}; it must be {row.pad} (the pad) to {row.position} "
                    "(the position)"
                )
        return 0

    def release(self, ids):
        """Let sequences go. Their published blocks stay findable until the memory is wanted.

        The handles are invalid at once. Blocks of a sequence that open steps name come back when the last
        of them closes; blocks that submitted work may still read, when its fence retires.

        Parameters
        ----------
        ids : int64 [n]
            Sequences, each once; in open steps or swapped out, too.

        Returns
        -------
        int
            Blocks that became usable now.

        Raises
        ------
        InvalidSequence
            A handle names no live sequence; nothing was changed.
        ValueError
            A handle is named twice; nothing was changed.
        """
        cdef Py_ssize_t i
        cdef int32_t row, usable = 0
        cdef Int64s handles = handles_of(ids)
        with cython.critical_section(self.pool):
            for i in range(self.c_name(handles, ANY)):
                row = self.named[i]
                self.rows[row].generation = self.rows[row].generation % INT32_MAX + 1
                self.num_sequences -= 1
                if self.rows[row].holds > 0:
                    self.rows[row].state = DOOMED
                else:
                    usable += self.c_drop_blocks(row, 0)
                    self.c_close_row(row)
            return usable

    # -- asynchronous work ------------------------------------------------------------------------

    def cover(self, fence):
        """From here on, blocks that are dropped wait until `fence` has retired.

        Parameters
        ----------
        fence : int
            Covers all work submitted so far; 0 is always retired.

        Notes
        -----
        A fence lower than one named before changes nothing: what covers more also covers less. Blocks that were
        dropped earlier wait for the fence that was named then. The first fence costs 8 bytes of bookkeeping for each
        block of the pool; MemoryError where they cannot be had, and nothing is changed.
        """
        cdef int64_t number = bounded_int(fence, "fence", 0, INT64_MAX)
        with cython.critical_section(self.pool):
            self.pool.fences.c_cover(number)

    def retire(self, fence):
        """The work that `fence` covers is done: what waited for it is free.

        Parameters
        ----------
        fence : int
            0 or more; fences up to this one retire with it.

        Returns
        -------
        int
            Blocks that became usable.
        """
        cdef int64_t number = bounded_int(fence, "fence", 0, INT64_MAX)
        with cython.critical_section(self.pool):
            return self.pool.c_retire(number)

    # -- looking ----------------------------------------------------------------------------------

    def position(self, handle):
        """Next row coordinate of a sequence, pads counted; committed tokens only."""
        with cython.critical_section(self.pool):
            self.c_name(handles_of([handle]), OPEN_OR_CLOSED)
            return self.rows[self.named[0]].position

    def length(self, handle):
        """Committed tokens of a sequence: its position less its pad."""
        with cython.critical_section(self.pool):
            self.c_name(handles_of([handle]), OPEN_OR_CLOSED)
            return self.rows[self.named[0]].position - self.rows[self.named[0]].pad

    def block_table(self, handle):
        """int32 [blocks]: a copy of the sequence's table, allotted blocks included."""
        cdef bytes raw
        with cython.critical_section(self.pool):
            self.c_name(handles_of([handle]), OPEN_OR_CLOSED)
            raw = (<char *>self.c_table(self.named[0]))[:self.rows[self.named[0]].num_blocks * sizeof(int32_t)]
        return np.frombuffer(raw, np.int32)

    def stats(self):
        """A `CacheStats` snapshot. O(blocks + rows)."""
        cdef int64_t tokens = 0
        cdef int32_t row
        with cython.critical_section(self.pool):
            for row in range(self.max_sequences):
                if self.rows[row].state == LIVE or self.rows[row].state == SWAPPED:
                    tokens += self.rows[row].position - self.rows[row].pad
            return CacheStats(
                num_blocks=self.pool.num_blocks,
                free=self.pool.num_free,
                cached=self.pool.num_cached,
                used=self.pool.num_used,
                waiting=self.pool.c_waiting(),
                pinned=self.num_pinned,
                shared=self.pool.c_shared(),
                peak_used=self.pool.peak_used,
                published=self.index.num_nodes,
                sequences=self.num_sequences,
                tokens=tokens,
                query_tokens=self.query_tokens,
                hit_tokens=self.hit_tokens,
                copies=self.num_copies,
                adopted=self.num_adopted,
                evictions=self.pool.evictions,
                swapped=self.num_swapped,
                bookkeeping_bytes=self.nbytes,
            )
