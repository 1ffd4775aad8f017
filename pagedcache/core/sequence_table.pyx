"""The verbs over whole sequences: admit, match, fork, truncate, release; see step_table for a step's."""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.string cimport memcpy

from pagedcache.core.arguments cimport counts_of, handles_of, refuse_negative
from pagedcache.core.records cimport NO_NODE
from pagedcache.core.row_table cimport DOOMED, LIVE, Row
from pagedcache.core.step_table cimport StepTable

import numpy as np

from pagedcache.core._convert import int64_array, ragged_tokens
from pagedcache.core.results import Admission, CacheStats
from pagedcache.core.arguments import bounded_int, later
from pagedcache.errors import OutOfSequences

cdef enum:
    ADMITTED = 0    # as in AdmitStatus
    NOT_NOW = 1
    NEVER_FITS = 2


cdef const int32_t[::1] own(object values, Py_ssize_t n, str name):
    """counts_of, as a copy: what is checked and then used must not change between, on any Python."""
    return np.array(counts_of(values, n, name))


cdef inline int32_t entry_of(const int32_t[::1] values, Py_ssize_t i) noexcept nogil:
    """Entry i of what `own` gave, which may be one for all; 0 where there is nothing."""
    if values is None:
        return 0
    return values[i if i < values.shape[0] else 0]


@cython.no_gc_clear
cdef class SequenceTable(StepTable):
    """Block tables of many sequences over one pool, with a prefix index; no K/V bytes.

    Parameters
    ----------
    pool : BlockPool
        A pool of this table's own.
    block_size : int
        Tokens per block, 1..1024.
    max_sequences : int
        Live sequences at a time.
    max_length : int, optional
        Most positions of one sequence; by default what the pool can hold.

    Notes
    -----
    Handles are int64. All lengths and positions are row coordinates: left pads count.
    Every call is guarded by the pool's critical section and either succeeds or changes nothing.

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

    # -- prompts in -------------------------------------------------------------------------------

    def admit(self, prompts, *, namespace=None, keys=None, reserve=0, pads=None):
        """Match, pin and allot, prompt by prompt.

        Each prompt gets a handle and blocks for its pads, its tokens and `reserve` more, sharing the
        published blocks of its longest known prefix; or nothing. At most
        ``(length - 1) // block_size`` blocks are shared, so that a token is left to compute.

        Parameters
        ----------
        prompts : sequence of int array-like
            Token ids, 0 <= id < 2**31; an empty prompt is legal.
        reserve : int or int32 [n]
            Positions to allot beyond each prompt.
        pads : int32 [n], optional
            Leading positions that are never visible; a padded row neither matches nor publishes.

        Returns
        -------
        Admission
            NEVER_FITS does not stop the call; everything after the first NOT_NOW is NOT_NOW.
        """
        cdef Py_ssize_t i, n
        cdef int32_t row, waiting = False, widest = 0
        cdef int32_t outcome
        cdef int64_t total
        if namespace is not None or keys is not None:
            raise later("admit(namespace=, keys=)")
        flat, ends = ragged_tokens(prompts)
        cdef const int32_t[::1] tokens = flat
        cdef const int64_t[::1] indptr = ends
        n = indptr.shape[0] - 1
        cdef const int32_t[::1] extras = None if type(reserve) is int and reserve == 0 else own(reserve, n, "reserve")
        cdef const int32_t[::1] all_pads = None if pads is None else own(pads, n, "pads")
        cdef int32_t extra, pad
        refuse_negative(tokens, "prompts")
        cdef int64_t[::1] ids = np.empty(n, np.int64)
        cdef int32_t[::1] cached = np.empty(n, np.int32)
        cdef signed char[::1] status = np.empty(n, np.int8)
        with cython.critical_section(self.pool):
            for i in range(n):
                ids[i] = -1
                cached[i] = 0
                status[i] = ADMITTED
                total = indptr[i + 1] - indptr[i] + entry_of(extras, i) + entry_of(all_pads, i)
                if total <= self.max_length and self.c_blocks_for(<int32_t>total) <= self.pool.num_blocks:
                    widest = max(widest, self.c_blocks_for(<int32_t>total))
                else:
                    status[i] = NEVER_FITS
            self.c_widen(widest)
            for i in range(n):
                if waiting:
                    status[i] = NOT_NOW
                    continue
                if status[i] == NEVER_FITS:
                    continue
                extra = entry_of(extras, i)
                pad = entry_of(all_pads, i)
                row = self.c_admit(
                    &tokens[0] + indptr[i] if tokens.shape[0] else NULL, indptr[i + 1] - indptr[i], pad, extra, &outcome
                )
                status[i] = <signed char>outcome
                if outcome == NOT_NOW:
                    waiting = True
                    continue
                ids[i] = self.c_handle(row)
                cached[i] = self.rows[row].position - pad
            self.pool.c_note_peak()
        return Admission(ids.base, cached.base, np.asarray(status.base))

    cdef int32_t c_admit(
        self, const int32_t *tokens, int64_t length, int64_t pad, int64_t reserve, int32_t *status
    ) noexcept nogil:
        """One prompt into a row; status ADMITTED or, with nothing changed, NOT_NOW."""
        cdef int32_t total = self.c_blocks_for(<int32_t>(pad + length + reserve))
        cdef int32_t hits = 0, idle = 0, last = NO_NODE, row, j
        cdef int32_t *table
        status[0] = NOT_NOW
        if self.num_vacant == 0:
            return -1
        # The row is still vacant, its table may serve as scratch.
        table = self.c_table(self.vacant[self.num_vacant - 1])
        if pad == 0 and length > 1:
            hits = self.index.c_match(tokens, <int32_t>((length - 1) // self.block_size), table, &last)
        for j in range(hits):
            idle += self.pool.records[table[j]].refcount == 0
        if total - hits > self.pool.c_usable() - idle:
            return -1
        row = self.c_open_row()
        for j in range(hits):               # pinned before anything is evicted for the rest
            self.pool.c_incref(table[j])
        self.pool.c_make_vacant(total - hits)
        self.rows[row].num_blocks = hits
        self.rows[row].num_published = hits
        self.rows[row].node = last
        self.rows[row].pad = <int32_t>pad
        self.rows[row].publishes = pad == 0
        self.rows[row].position = <int32_t>pad + hits * self.block_size
        self.c_append_blocks(row, total)
        self.query_tokens += length
        self.hit_tokens += hits * self.block_size
        status[0] = ADMITTED
        return row

    def match(self, prompts, *, namespace=None, keys=None):
        """What admit would call cached for each prompt alone, called now; changes nothing.

        Returns
        -------
        int32 [n]
            Leading tokens of each prompt whose K/V is there; 0 for a prompt that never fits.
        """
        cdef Py_ssize_t i
        cdef int64_t length
        cdef int32_t last, hits
        if namespace is not None or keys is not None:
            raise later("match(namespace=, keys=)")
        flat, ends = ragged_tokens(prompts)
        cdef const int32_t[::1] tokens = flat
        cdef const int64_t[::1] indptr = ends
        refuse_negative(tokens, "prompts")
        cdef int32_t[::1] blocks = np.empty(self.pool.num_blocks, np.int32)
        cdef int32_t[::1] cached = np.zeros(indptr.shape[0] - 1, np.int32)
        with cython.critical_section(self.pool):
            for i in range(cached.shape[0]):
                length = indptr[i + 1] - indptr[i]
                if 1 < length <= self.max_length and self.c_blocks_for(<int32_t>length) <= self.pool.num_blocks:
                    hits = self.index.c_match(
                        &tokens[0] + indptr[i], <int32_t>((length - 1) // self.block_size), &blocks[0], &last
                    )
                    cached[i] = hits * self.block_size
        return cached.base

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
        """
        cdef int64_t per_parent = bounded_int(n, "n", 0, INT32_MAX)
        cdef const int64_t[::1] handles = handles_of(ids)
        cdef const int32_t[::1] cuts = own([] if at is None else at, 0 if at is None else handles.shape[0], "at")
        cdef int64_t wanted = handles.shape[0] * per_parent
        cdef Py_ssize_t i, k
        if handles.shape[0] > 0 and per_parent > self.max_sequences:
            raise OutOfSequences(f"n is {n}; the cache has {self.max_sequences} rows (max_sequences)")
        cdef int64_t[:, ::1] children = np.empty((handles.shape[0], per_parent), np.int64)
        with cython.critical_section(self.pool):
            self.c_name(handles, closed=True)
            self.c_check_cuts(cuts, handles.shape[0], "at")
            if wanted > self.num_vacant:
                raise OutOfSequences(
                    f"{wanted} rows wanted, {self.num_vacant} of {self.max_sequences} are "
                    "vacant; release sequences, or make the cache with a larger max_sequences"
                )
            for i in range(handles.shape[0]):
                for k in range(per_parent):
                    children[i, k] = self.c_fork(self.named[i], self.c_cut(cuts, i))
        return children.base

    cdef int64_t c_fork(self, int32_t row, int32_t cut) noexcept nogil:
        """Handle of a new row that shares the blocks of `row` up to position `cut`."""
        cdef int32_t child = self.c_open_row()
        cdef int32_t blocks = self.c_blocks_for(cut), j
        cdef int32_t *table = self.c_table(child)
        memcpy(table, self.c_table(row), blocks * sizeof(int32_t))
        for j in range(blocks):
            self.pool.c_incref(table[j])
        self.rows[child].num_blocks = blocks
        self.rows[child].position = cut
        self.rows[child].pad = self.rows[row].pad
        self.rows[child].publishes = self.rows[row].publishes
        self.rows[child].node = self.rows[row].node
        self.rows[child].num_published = self.rows[row].num_published
        self.c_unpublish_row(child, self.c_block_of(cut))
        return self.c_handle(child)

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
        """
        cdef const int64_t[::1] handles = handles_of(ids)
        cdef const int32_t[::1] cuts = own(positions, handles.shape[0], "positions")
        cdef Py_ssize_t i
        cdef int32_t row, cut, usable = 0
        with cython.critical_section(self.pool):
            self.c_name(handles, closed=True)
            self.c_check_cuts(cuts, handles.shape[0], "positions")
            for i in range(handles.shape[0]):
                row = self.named[i]
                cut = self.c_cut(cuts, i)
                usable += self.c_drop_blocks(row, self.c_blocks_for(cut))
                self.c_unpublish_row(row, self.c_block_of(cut))
                self.rows[row].position = cut
        return usable

    cdef int32_t c_cut(self, const int32_t[::1] cuts, Py_ssize_t i) noexcept nogil:
        """Position to cut named row i at; no cuts: where it is; one: the same for all."""
        if cuts.shape[0] == 0:
            return self.rows[self.named[i]].position
        return cuts[i if i < cuts.shape[0] else 0]

    cdef int c_check_cuts(self, const int32_t[::1] cuts, Py_ssize_t n, str name) except -1:
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

        The handles are invalid at once. Blocks of a sequence that an open step names come back when
        that step closes.

        Returns
        -------
        int
            Blocks that became usable now.
        """
        cdef Py_ssize_t i
        cdef int32_t row, usable = 0
        cdef const int64_t[::1] handles = handles_of(ids)
        with cython.critical_section(self.pool):
            for i in range(self.c_name(handles, closed=False)):
                row = self.named[i]
                self.rows[row].generation = self.rows[row].generation % INT32_MAX + 1
                self.num_sequences -= 1
                if self.rows[row].in_step:
                    self.rows[row].state = DOOMED
                else:
                    usable += self.c_drop_blocks(row, 0)
                    self.c_close_row(row)
            return usable

    # -- looking ----------------------------------------------------------------------------------

    def position(self, handle):
        """Next row coordinate of a sequence, pads counted; committed tokens only."""
        with cython.critical_section(self.pool):
            self.c_name(int64_array([handle], "handle"), closed=False)
            return self.rows[self.named[0]].position

    def length(self, handle):
        """Committed tokens of a sequence: its position less its pad."""
        with cython.critical_section(self.pool):
            self.c_name(int64_array([handle], "handle"), closed=False)
            return self.rows[self.named[0]].position - self.rows[self.named[0]].pad

    def block_table(self, handle):
        """int32 [blocks]: a copy of the sequence's table, allotted blocks included."""
        cdef bytes raw
        with cython.critical_section(self.pool):
            self.c_name(int64_array([handle], "handle"), closed=False)
            raw = (<char *>self.c_table(self.named[0]))[:self.rows[self.named[0]].num_blocks * sizeof(int32_t)]
        return np.frombuffer(raw, np.int32)

    def stats(self):
        """A `CacheStats` snapshot. O(blocks + rows)."""
        cdef int64_t tokens = 0
        cdef int32_t row
        with cython.critical_section(self.pool):
            for row in range(self.max_sequences):
                if self.rows[row].state == LIVE:
                    tokens += self.rows[row].position - self.rows[row].pad
            return CacheStats(
                num_blocks=self.pool.num_blocks,
                free=self.pool.num_free,
                cached=self.pool.num_cached,
                used=self.pool.num_used,
                shared=self.pool.num_shared,
                peak_used=self.pool.peak_used,
                published=self.index.num_nodes,
                sequences=self.num_sequences,
                tokens=tokens,
                query_tokens=self.query_tokens,
                hit_tokens=self.hit_tokens,
                copies=self.num_copies,
                adopted=self.num_adopted,
                evictions=self.pool.evictions,
                bookkeeping_bytes=self.nbytes,
            )

    # -- signatures that are final, work that is not there yet --------------------------------------

    def reorder(self, ids, parents):
        """Beam step: sequence i goes on from ``ids[parents[i]]``. Not built yet."""
        raise later("reorder")

    def retire(self, fence):
        """Free what waited for `fence`. Not built yet: every drop is immediate."""
        raise later("retire")

    def pin(self, prompts, name, *, namespace=None, keys=None):
        """Keep the published blocks of `prompts` from eviction. Not built yet."""
        raise later("pin")

    def unpin(self, name):
        """Undo `pin`. Not built yet."""
        raise later("unpin")

    def evict(self, n_blocks):
        """Give up idle cached blocks. Not built yet."""
        raise later("evict")

    def reset(self):
        """Forget the whole prefix cache. Not built yet."""
        raise later("reset")

    def invalidate(self, *, namespace):
        """Forget what a namespace has published. Not built yet."""
        raise later("invalidate")

    def swap_out(self, ids):
        """Move the blocks that only these sequences hold to another tier. Not built yet."""
        raise later("swap_out")

    def swap_in(self, ids):
        """Undo `swap_out`. Not built yet."""
        raise later("swap_in")

    def compact(self):
        """Renumber blocks so that tables run on. Not built yet."""
        raise later("compact")

    def events(self):
        """Drain the record of stored and removed blocks. Not built yet."""
        raise later("events")
