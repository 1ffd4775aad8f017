"""Where blocks are: out to another tier and back (swap), or closer together (compact).

Bytes are moved by whoever calls: before `swap_out` those that `swap_list` names, after `swap_in` those that it
returns; before `compact` the pairs that `compaction` names.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from pagedcache.core.arguments cimport Int32s, Int64s, handles_of, int32s_of
from pagedcache.core.cache_table cimport CacheTable
from pagedcache.core.records cimport GROUP, NO_NODE, ZERO_BLOCK
from pagedcache.core.row_table cimport AWAY, CLOSED, LIVE, SWAPPED, SwappedBlocks

import numpy as np

from pagedcache.errors import StepOpen


@cython.no_gc_clear
cdef class ResidencyTable(CacheTable):
    """The verbs that move blocks; see SequenceTable."""

    def __dealloc__(self):
        if self.num_planned > 0:
            with cython.critical_section(self.pool):
                self.c_cancel()

    def swap_list(self, ids):
        """The blocks whose bytes `swap_out` would lose; changes nothing.

        Returns
        -------
        blocks : int32 [m]
            Those that hold tokens and that only their sequence holds, in logical order.
        indptr : int64 [n + 1]
            Those of sequence i are ``blocks[indptr[i]:indptr[i + 1]]``.
        """
        cdef Int64s handles = handles_of(ids)
        cdef list blocks = [], indptr = [0]
        cdef int32_t i, j, row
        with cython.critical_section(self.pool):
            for i in range(self.c_name(handles, CLOSED)):
                row = self.named[i]
                for j in range(self.c_blocks_for(self.rows[row].position)):
                    if self.c_is_own(self.c_table(row)[j]):
                        blocks.append(self.c_table(row)[j])
                indptr.append(len(blocks))
        return np.array(blocks, np.int32), np.array(indptr, np.int64)

    def swap_out(self, ids, saved=None):
        """Give up the blocks that these sequences hold alone; shared ones stay.

        Handles stay valid for `swap_in` and `release` only. Published blocks that are given up can be found
        as before, until their memory is wanted. What admit had allotted is given up as well, and comes back.

        Parameters
        ----------
        ids : int64 [n]
            Sequences of no open step. The caller has saved the bytes of `swap_list`.
        saved : int32 [m], optional
            The blocks that `swap_list` named.

        Returns
        -------
        int
            Blocks that became usable now; -1 where other blocks than `saved` would be given up by now, and
            nothing was done.
        """
        cdef Int64s handles = handles_of(ids)
        cdef Int32s expected = None if saved is None else int32s_of(saved, "saved")
        cdef int32_t i, k, row, count, n, usable = 0
        cdef SwappedBlocks *swapped
        with cython.critical_section(self.pool):
            n = <int32_t>self.c_name(handles, CLOSED)
            if expected is not None and not self.c_is_swap_list(n, expected.data, expected.n):
                return -1
            for i in range(n):
                row = self.named[i]
                count = self.c_own_blocks(row)
                swapped = <SwappedBlocks *>malloc(
                    sizeof(SwappedBlocks) + count * (1 + <size_t>self.block_size) * sizeof(int32_t)
                )
                if not swapped:
                    for k in range(i):
                        free(self.rows[self.named[k]].swapped)
                        self.rows[self.named[k]].swapped = NULL
                    raise MemoryError(f"no memory to keep the token ids of {count} blocks")
                swapped.count = count
                swapped.logical = <int32_t *>(swapped + 1)
                swapped.tokens = swapped.logical + count
                self.rows[row].swapped = swapped
            self.pool.policy.c_tick()
            for i in range(n):
                usable += self.c_swap_out(self.named[i])
        return usable

    cdef bint c_is_swap_list(self, int32_t n, const int32_t *blocks, Py_ssize_t count) noexcept nogil:
        """Whether the named rows would give up just these blocks with tokens."""
        cdef Py_ssize_t seen = 0
        cdef int32_t i, j, row
        for i in range(n):
            row = self.named[i]
            for j in range(self.c_blocks_for(self.rows[row].position)):
                if self.c_is_own(self.c_table(row)[j]):
                    if seen == count or blocks[seen] != self.c_table(row)[j]:
                        return False
                    seen += 1
        return seen == count

    cdef inline bint c_is_own(self, int32_t block) noexcept nogil:
        """Whether only one sequence holds the block; the fence queue is no holder."""
        return self.pool.records[block].refcount - self.pool.fences.c_has(block) == 1

    cdef int32_t c_own_blocks(self, int32_t row) noexcept nogil:
        cdef int32_t j, own = 0
        for j in range(self.rows[row].num_blocks):
            own += self.c_is_own(self.c_table(row)[j])
        return own

    cdef int32_t c_swap_out(self, int32_t row) noexcept nogil:
        """Keep what swap_in needs, and drop the row's own blocks, tail first; how many became usable."""
        cdef SwappedBlocks *swapped = self.rows[row].swapped
        cdef int32_t *table = self.c_table(row)
        cdef size_t size = self.block_size
        cdef int32_t j, k = 0, usable = 0
        for j in range(self.rows[row].num_blocks):
            if self.c_is_own(table[j]):
                swapped.logical[k] = j
                memcpy(swapped.tokens + k * size, self.index.tokens + table[j] * size, size * sizeof(int32_t))
                k += 1
        if k > 0:
            self.c_unpublish_row(row, swapped.logical[0])
        for k in range(swapped.count - 1, -1, -1):
            j = swapped.logical[k]
            usable += self.pool.c_decref(table[j])
            table[j] = ZERO_BLOCK
        self.rows[row].state = SWAPPED
        self.rows[row].clean = 0
        self.c_hide(row)
        self.num_swapped += swapped.count
        return usable

    def swap_in(self, ids):
        """Take blocks for what `swap_out` gave up; the handles are as good as before.

        Returns
        -------
        int32 [m]
            Where the bytes of `swap_list` go, in its order.

        Raises
        ------
        OutOfBlocks
            Too few usable blocks; nothing was changed.
        """
        cdef Int64s handles = handles_of(ids)
        cdef int32_t i, n, filled = 0
        cdef int64_t wanted = 0
        cdef int32_t *blocks
        with cython.critical_section(self.pool):
            n = <int32_t>self.c_name(handles, AWAY)
            for i in range(n):
                wanted += self.rows[self.named[i]].swapped.count
            if wanted > self.pool.c_usable():
                raise self.c_out_of_blocks("swap_in", wanted, "release or swap out other sequences")
            blocks = <int32_t *>malloc(wanted * sizeof(int32_t) + 1)
            if not blocks:
                raise MemoryError(f"no memory to name {wanted} blocks")
            self.pool.c_make_vacant(<int32_t>wanted)
            for i in range(n):
                filled += self.c_swap_in(self.named[i], blocks + filled)
            self.pool.c_note_peak()
            try:
                return np.frombuffer((<char *>blocks)[:filled * sizeof(int32_t)], np.int32)
            finally:
                free(blocks)

    cdef int32_t c_swap_in(self, int32_t row, int32_t *blocks) noexcept nogil:
        """Fill the gaps of the row's table; how many blocks of `blocks` want their bytes."""
        cdef SwappedBlocks *swapped = self.rows[row].swapped
        cdef int32_t *table = self.c_table(row)
        cdef size_t size = self.block_size
        cdef int32_t j, k, filled = 0
        for k in range(swapped.count):
            j = swapped.logical[k]
            self.pool.c_take(table[j - 1] if j > 0 else ZERO_BLOCK, 1, &table[j])
            memcpy(self.index.tokens + table[j] * size, swapped.tokens + k * size, size * sizeof(int32_t))
            if j < self.c_blocks_for(self.rows[row].position):
                blocks[filled] = table[j]
                filled += 1
        self.num_swapped -= swapped.count
        self.rows[row].state = LIVE
        self.rows[row].swapped = NULL
        free(swapped)
        return filled

    def compaction(self):
        """The blocks that `compact` would move now; changes nothing.

        Returns
        -------
        int32 [m, 2]
            Source and destination; every destination is vacant.

        Raises
        ------
        StepOpen
            A step is open, and its arrays name blocks.
        """
        cdef int32_t[:, ::1] pairs = np.empty((self.pool.num_blocks, 2), np.int32)
        cdef int32_t moved
        with cython.critical_section(self.pool):
            self.c_require_no_step()
            moved = self.c_plan(&pairs[0, 0])
        return pairs.base[:moved].copy()

    def begin_compaction(self):
        """`compaction`, with its destinations held, so that nobody can be given them while bytes are copied.

        They are held until `compact`, `cancel_compaction` or the next call of this.
        """
        cdef int32_t k
        with cython.critical_section(self.pool):
            self.c_require_no_step()
            self.c_cancel()
            self.planned = <int32_t *>malloc(<size_t>self.pool.num_blocks * 2 * sizeof(int32_t))
            if not self.planned:
                raise MemoryError(f"no memory to plan for {self.pool.num_blocks} blocks")
            self.num_planned = self.c_plan(self.planned)
            for k in range(self.num_planned):
                self.pool.c_take_this(self.planned[2 * k + 1])
            raw = (<char *>self.planned)[:2 * self.num_planned * sizeof(int32_t)]
        return np.frombuffer(raw, np.int32).reshape(-1, 2)

    def cancel_compaction(self):
        """Give back what `begin_compaction` holds."""
        with cython.critical_section(self.pool):
            self.c_cancel()

    cdef void c_cancel(self) noexcept nogil:
        cdef int32_t k, block
        for k in range(self.num_planned):
            block = self.planned[2 * k + 1]
            self.pool.records[block].refcount = 0
            self.pool.c_put(block)
        self.num_planned = 0
        free(self.planned)
        self.planned = NULL

    def compact(self, copied=None):
        """Renumber blocks so that block ids of a sequence run on, four at a time, as far as vacant groups reach.

        The caller has copied bytes as `compaction` says. Blocks that are shared stay; what this frees may make
        a further call worthwhile.

        Parameters
        ----------
        copied : int32 [m, 2], optional
            The pairs that `compaction` or `begin_compaction` named.

        Returns
        -------
        int
            Blocks moved; -1 where other pairs than `copied` would be moved by now, and nothing was done.
        """
        cdef int32_t *pairs
        cdef int32_t moved, k, row, j
        cdef Int32s expected = None if copied is None else int32s_of(np.reshape(copied, -1), "copied")
        with cython.critical_section(self.pool):
            self.c_require_no_step()
            self.c_cancel()
            pairs = <int32_t *>malloc(<size_t>self.pool.num_blocks * 2 * sizeof(int32_t))
            if not pairs:
                raise MemoryError(f"no memory to plan for {self.pool.num_blocks} blocks")
            moved = self.c_plan(pairs)
            if expected is not None and (
                expected.n != 2 * moved or memcmp(expected.data, pairs, 2 * moved * sizeof(int32_t)) != 0
            ):
                free(pairs)
                return -1
            k = 0
            for row in range(self.max_sequences):
                if self.rows[row].state != LIVE:
                    continue
                for j in range(self.rows[row].num_blocks):
                    if k < moved and self.c_table(row)[j] == pairs[2 * k]:
                        self.c_move(row, j, pairs[2 * k + 1])
                        k += 1
            free(pairs)
            return moved

    cdef int c_require_no_step(self) except -1:
        if self.num_open > 0:
            raise StepOpen(f"{self.num_open} steps are open and name blocks: commit or abandon them first")
        return 0

    cdef int32_t c_plan(self, int32_t *pairs) noexcept nogil:
        """Whole groups of logical blocks that only their row holds, into wholly vacant groups; in order of rows."""
        cdef int32_t row, j, k, group = self.c_next_group(0), moved = 0
        cdef int32_t *table
        cdef bint movable, runs
        for row in range(self.max_sequences):
            if self.rows[row].state != LIVE:
                continue
            table = self.c_table(row)
            j = -GROUP
            while j + 2 * <int32_t>GROUP <= self.rows[row].num_blocks:
                j += GROUP
                if group < 0:
                    return moved
                movable = True
                runs = table[j] % GROUP == 0
                for k in range(<int32_t>GROUP):
                    movable = movable and self.pool.records[table[j + k]].refcount == 1
                    runs = runs and table[j + k] == table[j] + k
                if movable and not runs:
                    for k in range(<int32_t>GROUP):
                        pairs[2 * moved] = table[j + k]
                        pairs[2 * moved + 1] = group * GROUP + k
                        moved += 1
                    group = self.c_next_group(group + 1)
        return moved

    cdef int32_t c_next_group(self, int32_t group) noexcept nogil:
        """The first wholly vacant group from `group` on, or -1."""
        while group <= self.pool.num_blocks // <int32_t>GROUP:
            if self.pool.group_vacant[group] == GROUP:
                return group
            group += 1
        return -1

    cdef void c_move(self, int32_t row, int32_t j, int32_t to) noexcept nogil:
        """Entry j of the row becomes the vacant block `to`, which takes over tokens and place in the index."""
        cdef int32_t block = self.c_table(row)[j]
        cdef size_t size = self.block_size
        self.pool.c_take_this(to)
        memcpy(self.index.tokens + to * size, self.index.tokens + block * size, size * sizeof(int32_t))
        self.pool.records[to].node = self.pool.records[block].node
        if self.pool.records[to].node != NO_NODE:
            self.index.c_move(self.pool.records[to].node, to)
            self.pool.policy.c_set_level(to, self.pool.policy.c_level(block))
            self.pool.records[block].node = NO_NODE
        self.c_table(row)[j] = to
        self.c_spoil(row, j)
        self.pool.c_decref(block)

    cdef dict c_references(self):
        """Also the destinations that a compaction holds."""
        cdef dict references = CacheTable.c_references(self)
        cdef int32_t k
        for k in range(self.num_planned):
            references[self.planned[2 * k + 1]] = references.get(self.planned[2 * k + 1], 0) + 1
        return references
