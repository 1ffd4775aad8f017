"""Blocks closer together: renumbered, so that those of a sequence run on.

Bytes are moved by whoever calls, as `compaction` or `begin_compaction` says, before `compact`.
"""

cimport cython
from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from pagedcache.core.arguments cimport Int32s, int32s_of
from pagedcache.core.records cimport GROUP, NO_NODE
from pagedcache.core.row_table cimport LIVE
from pagedcache.core.swap_table cimport SwapTable

import numpy as np

from pagedcache.errors import StepOpen


@cython.no_gc_clear
cdef class CompactTable(SwapTable):
    """The verbs that compact; see SequenceTable."""

    def __dealloc__(self):
        if self.num_planned > 0:
            with cython.critical_section(self.pool):
                self.c_cancel()

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
            if self.pool.policy.hears_uses:
                self.pool.policy.c_move(block, to)
            self.pool.records[block].node = NO_NODE
        self.c_table(row)[j] = to
        self.c_spoil(row, j)
        self.pool.c_decref(block)

    cdef dict c_references(self):
        """Also the destinations that a compaction holds."""
        cdef dict references = SwapTable.c_references(self)
        cdef int32_t k
        for k in range(self.num_planned):
            references[self.planned[2 * k + 1]] = references.get(self.planned[2 * k + 1], 0) + 1
        return references
