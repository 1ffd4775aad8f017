"""The verbs over whole sequences that are left: truncate and release; asynchronous work; looking."""

cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t

from pagedcache.core.archive_table cimport ArchiveTable
from pagedcache.core.arguments cimport Int32s, Int64s, handles_of, own_counts
from pagedcache.core.records cimport ZERO_BLOCK
from pagedcache.core.row_table cimport ANY, CLOSED, DOOMED, LIVE, OPEN_OR_CLOSED, SWAPPED, VACANT

import numpy as np

from pagedcache.core.arguments import bounded_int
from pagedcache.core.results import CacheStats


@cython.no_gc_clear
cdef class SequenceTable(ArchiveTable):
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
    side_groups : sequence of (window, sink_tokens, is_chunked), optional
        Layer groups beside the first, which is one of full attention: the tokens that a query sees, or None for
        all; the leading tokens kept for ever; and whether the window is a chunk that does not slide.
    max_step_tokens : int, optional
        Most new tokens of a sequence in one step; required where a window is given.
    state_blocks : sequence of int, optional
        State groups, numbered behind the other layer groups: how many blocks the state of a sequence takes in each.
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

    # -- rolling back, letting go -----------------------------------------------------------------

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
        PositionReleased
            A window has let blocks go that a query at the position would see, or the table keeps states, which are
            those of the present position.
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
                self.c_place(row, cut)
        return usable

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

    def handles(self):
        """int64 [n]: handles of the live sequences, without those that are swapped out."""
        cdef int32_t row
        with cython.critical_section(self.pool):
            found = [self.c_handle(row) for row in range(self.max_sequences) if self.rows[row].state == LIVE]
        return np.array(found, np.int64)

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

    def block_table(self, handle, group=0):
        """int32 [blocks]: a copy of the sequence's table in a layer group, allotted ones included; 0 where released.

        Of a state group: the blocks of its state, open steps included; 0 before the first token.
        """
        cdef int32_t side = bounded_int(group, "group", 0, self.num_sides + len(self.state_groups)) - 1, row, count
        cdef int32_t first = 0
        cdef bytes raw
        with cython.critical_section(self.pool):
            self.c_name(handles_of([handle]), OPEN_OR_CLOSED)
            row = self.named[0]
            if side >= self.num_sides:
                first = sum(self.state_groups[:side - self.num_sides])
                count = self.state_groups[side - self.num_sides]
                raw = (<char *>(self.c_state(row) + first))[:count * sizeof(int32_t)]
                return np.frombuffer(raw, np.int32)
            count = self.rows[row].num_blocks if side < 0 else self.sides[side].filled[row]
            raw = (<char *>self.c_side_table(side, row))[:count * sizeof(int32_t)]
        return np.frombuffer(raw, np.int32)

    def stats(self):
        """A `CacheStats` snapshot. O(blocks + rows)."""
        cdef int64_t tokens = 0
        cdef int32_t row
        cdef tuple held
        with cython.critical_section(self.pool):
            for row in range(self.max_sequences):
                if self.rows[row].state == LIVE or self.rows[row].state == SWAPPED:
                    tokens += self.rows[row].position - self.rows[row].pad
            held = tuple([self.c_held(side) for side in range(-1, self.num_sides)]) + self.c_held_by_states()
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
                group_blocks=held,
                query_tokens=self.query_tokens,
                hit_tokens=self.hit_tokens,
                copies=self.num_copies,
                adopted=self.num_adopted,
                evictions=self.pool.evictions,
                swapped=self.num_swapped,
                bookkeeping_bytes=self.nbytes,
            )

    cdef int64_t c_held(self, int32_t side):
        """Table entries of a layer group that name a block; side -1 is group 0."""
        cdef int64_t held = 0
        cdef int32_t row, j
        for row in range(self.max_sequences):
            if self.rows[row].state != VACANT:
                for j in range(self.rows[row].num_blocks if side < 0 else self.sides[side].filled[row]):
                    held += self.c_side_table(side, row)[j] != ZERO_BLOCK
        return held

    cdef tuple c_held_by_states(self):
        """The same of each state group, spare copies and what open steps read included."""
        cdef list held = []
        first = 0
        for blocks in self.state_groups:
            held.append(self.c_held_states(first, first + blocks))
            first += blocks
        return tuple(held)
