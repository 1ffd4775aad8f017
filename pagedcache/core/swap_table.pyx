"""Blocks out to another tier and back.

Bytes are moved by whoever calls: before `swap_out` those that `swap_list` names, after `begin_swap_in` or `swap_in`
to where it says.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pagedcache.core.arguments cimport Int32s, Int64s, handles_of, int32s_of
from pagedcache.core.cache_table cimport CacheTable
from pagedcache.core.records cimport ZERO_BLOCK
from pagedcache.core.row_table cimport AWAY, CLOSED, LIVE, SWAPPED, SwappedBlocks

import numpy as np


cdef object moved_to_array(int32_t *blocks, int32_t n):
    """int32 [n]; frees `blocks`."""
    try:
        return np.frombuffer((<char *>blocks)[:n * sizeof(int32_t)], np.int32)
    finally:
        free(blocks)


@cython.no_gc_clear
cdef class SwapTable(CacheTable):
    """The verbs that swap; see SequenceTable."""

    def swap_list(self, ids):
        """The blocks whose bytes `swap_out` would lose; changes nothing.

        Parameters
        ----------
        ids : int64 [n]
            Sequences of no open step, each once.

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

        Parameters
        ----------
        ids : int64 [n]
            Sequences that are swapped out.

        Returns
        -------
        int32 [m]
            Where the bytes of `swap_list` go, in its order: the blocks that `begin_swap_in` named, if it did.

        Raises
        ------
        OutOfBlocks
            Too few usable blocks; nothing was changed.
        """
        cdef Int64s handles = handles_of(ids)
        cdef int32_t i, n, filled
        cdef int32_t *blocks
        with cython.critical_section(self.pool):
            n = <int32_t>self.c_name(handles, AWAY)
            blocks = self.c_begin_swap_in(n, &filled)
            for i in range(n):
                self.c_come_back(self.named[i])
            return moved_to_array(blocks, filled)

    def begin_swap_in(self, ids):
        """`swap_in`, with the handles still swapped out, so that nobody can use them while bytes are moved.

        The blocks are held until `swap_in`, `cancel_swap_in` or `release` of their sequence.

        Parameters
        ----------
        ids : int64 [n]
            Sequences that are swapped out.

        Returns
        -------
        int32 [m]
            As of `swap_in`.

        Raises
        ------
        OutOfBlocks
            Too few usable blocks; nothing was changed.
        """
        cdef Int64s handles = handles_of(ids)
        cdef int32_t filled
        cdef int32_t *blocks
        with cython.critical_section(self.pool):
            blocks = self.c_begin_swap_in(<int32_t>self.c_name(handles, AWAY), &filled)
            return moved_to_array(blocks, filled)

    cdef int32_t *c_begin_swap_in(self, int32_t n, int32_t *filled) except NULL:
        """Fill the gaps of the named rows' tables; the blocks there that want their bytes, for the caller to free."""
        cdef SwappedBlocks *swapped
        cdef int64_t wanted = 0, most = 0
        cdef int32_t *blocks
        cdef int32_t i, k, row
        for i in range(n):
            row = self.named[i]
            swapped = self.rows[row].swapped
            most += swapped.count
            for k in range(swapped.count):
                wanted += self.c_table(row)[swapped.logical[k]] == ZERO_BLOCK
        if wanted > self.pool.c_usable():
            raise self.c_out_of_blocks("swap_in", wanted, "release or swap out other sequences")
        blocks = <int32_t *>malloc(most * sizeof(int32_t) + 1)
        if not blocks:
            raise MemoryError(f"no memory to name {most} blocks")
        self.pool.c_make_vacant(<int32_t>wanted)
        filled[0] = 0
        for i in range(n):
            filled[0] += self.c_fill_gaps(self.named[i], blocks + filled[0])
        self.pool.c_note_peak()
        return blocks

    cdef int32_t c_fill_gaps(self, int32_t row, int32_t *blocks) noexcept nogil:
        """A block for each entry of the row that has none; how many of `blocks` want their bytes."""
        cdef SwappedBlocks *swapped = self.rows[row].swapped
        cdef int32_t *table = self.c_table(row)
        cdef int32_t j, k, filled = 0
        for k in range(swapped.count):
            j = swapped.logical[k]
            if table[j] == ZERO_BLOCK:
                self.pool.c_take(table[j - 1] if j > 0 else ZERO_BLOCK, 1, &table[j])
            if j < self.c_blocks_for(self.rows[row].position):
                blocks[filled] = table[j]
                filled += 1
        return filled

    cdef void c_come_back(self, int32_t row) noexcept nogil:
        """The row, whose gaps are filled, is live again, with its token ids."""
        cdef SwappedBlocks *swapped = self.rows[row].swapped
        cdef size_t size = self.block_size
        cdef int32_t k
        for k in range(swapped.count):
            memcpy(
                self.index.tokens + self.c_table(row)[swapped.logical[k]] * size, swapped.tokens + k * size,
                size * sizeof(int32_t)
            )
        self.num_swapped -= swapped.count
        self.rows[row].state = LIVE
        self.rows[row].swapped = NULL
        free(swapped)

    def cancel_swap_in(self, ids):
        """Give back what `begin_swap_in` took: the sequences are swapped out as they were before."""
        cdef Int64s handles = handles_of(ids)
        cdef SwappedBlocks *swapped
        cdef int32_t *table
        cdef int32_t i, k
        with cython.critical_section(self.pool):
            for i in range(self.c_name(handles, AWAY)):
                swapped = self.rows[self.named[i]].swapped
                table = self.c_table(self.named[i])
                for k in range(swapped.count - 1, -1, -1):
                    if table[swapped.logical[k]] != ZERO_BLOCK:
                        self.pool.c_decref(table[swapped.logical[k]])
                        table[swapped.logical[k]] = ZERO_BLOCK
