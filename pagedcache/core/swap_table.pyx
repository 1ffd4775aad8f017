"""Blocks out to another tier and back.

Bytes are moved by whoever calls: before `swap_out` those that `swap_list` names, after `begin_swap_in` or `swap_in`
to where it says.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pagedcache.core.arguments cimport Int32s, Int64s, handles_of, int32s_of
from pagedcache.core.adopt_table cimport AdoptTable
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
cdef class SwapTable(AdoptTable):
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
            Those that hold tokens and that only their sequence holds, in logical order, group by group; before them
            those of its state.
        indptr : int64 [n + 1]
            Those of sequence i are ``blocks[indptr[i]:indptr[i + 1]]``.
        """
        cdef Int64s handles = handles_of(ids)
        cdef list blocks = [], indptr = [0]
        cdef int32_t i, row
        cdef int64_t place
        with cython.critical_section(self.pool):
            for i in range(self.c_name(handles, CLOSED)):
                row = self.named[i]
                for place in range(-self.num_state_blocks, self.c_places_for(self.rows[row].position)):
                    if self.c_is_own(row, place):
                        blocks.append(self.c_entry(row, place)[0])
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
                    sizeof(SwappedBlocks) + count * (sizeof(int64_t) + <size_t>self.block_size * sizeof(int32_t))
                )
                if not swapped:
                    for k in range(i):
                        free(self.rows[self.named[k]].swapped)
                        self.rows[self.named[k]].swapped = NULL
                    raise MemoryError(f"no memory to keep the token ids of {count} blocks")
                swapped.count = count
                swapped.places = <int64_t *>(swapped + 1)
                swapped.tokens = <int32_t *>(swapped.places + count)
                self.rows[row].swapped = swapped
            self.pool.policy.c_tick()
            for i in range(n):
                usable += self.c_swap_out(self.named[i])
        return usable

    cdef inline int64_t c_places_for(self, int32_t positions) noexcept nogil:
        """Places up to a position, in all groups: entry after entry, group after group."""
        return (self.num_sides + <int64_t>1) * self.c_blocks_for(positions)

    cdef inline int64_t c_first_place(self, int32_t row) noexcept nogil:
        """Places below 0 are of states: -1 and so on of the present one, then of spare copies."""
        return -(self.num_spare[row] + <int64_t>1) * self.num_state_blocks

    cdef inline int32_t *c_entry(self, int32_t row, int64_t place) noexcept nogil:
        cdef int32_t groups = self.num_sides + 1
        if place < 0:
            return self.c_state(row) - 1 - place
        return self.c_side_table(<int32_t>(place % groups) - 1, row) + place // groups

    cdef bint c_is_own(self, int32_t row, int64_t place) noexcept nogil:
        """Whether there is a block that only this sequence holds; the fence queue is no holder."""
        cdef int32_t entry = <int32_t>(place // (self.num_sides + 1))
        cdef int32_t side = <int32_t>(place % (self.num_sides + 1)) - 1
        cdef int32_t block
        if place >= 0 and entry >= (self.rows[row].num_blocks if side < 0 else self.sides[side].filled[row]):
            return False
        block = self.c_entry(row, place)[0]
        return block != ZERO_BLOCK and self.pool.records[block].refcount - self.pool.fences.c_has(block) == 1

    cdef bint c_is_swap_list(self, int32_t n, const int32_t *blocks, Py_ssize_t count) noexcept nogil:
        """Whether the named rows would give up just these blocks with tokens."""
        cdef Py_ssize_t seen = 0
        cdef int32_t i, row
        cdef int64_t place
        for i in range(n):
            row = self.named[i]
            for place in range(-self.num_state_blocks, self.c_places_for(self.rows[row].position)):
                if self.c_is_own(row, place):
                    if seen == count or blocks[seen] != self.c_entry(row, place)[0]:
                        return False
                    seen += 1
        return seen == count

    cdef int64_t c_all_places(self, int32_t row) noexcept nogil:
        """Places up to the last block of the row in any group, allotted ones included."""
        cdef int32_t side, blocks = self.rows[row].num_blocks
        for side in range(self.num_sides):
            blocks = max(blocks, self.sides[side].filled[row])
        return (self.num_sides + <int64_t>1) * blocks

    cdef int32_t c_own_blocks(self, int32_t row) noexcept nogil:
        cdef int32_t own = 0
        cdef int64_t place
        for place in range(self.c_first_place(row), self.c_all_places(row)):
            own += self.c_is_own(row, place)
        return own

    cdef int32_t c_swap_out(self, int32_t row) noexcept nogil:
        """Keep what swap_in needs, and drop the row's own blocks, tail first; how many became usable."""
        cdef SwappedBlocks *swapped = self.rows[row].swapped
        cdef size_t size = self.block_size
        cdef int32_t k = 0, usable = 0, side, block
        cdef int64_t place
        for place in range(self.c_first_place(row), self.c_all_places(row)):
            if self.c_is_own(row, place):
                swapped.places[k] = place
                block = self.c_entry(row, place)[0]
                memcpy(swapped.tokens + k * size, self.index.tokens + block * size, size * sizeof(int32_t))
                k += 1
        for k in range(swapped.count):
            if swapped.places[k] >= 0 and swapped.places[k] % (self.num_sides + 1) == 0:
                self.c_unpublish_row(row, <int32_t>(swapped.places[k] // (self.num_sides + 1)))
                break
        for k in range(swapped.count - 1, -1, -1):
            usable += self.pool.c_decref(self.c_entry(row, swapped.places[k])[0])
            self.c_entry(row, swapped.places[k])[0] = ZERO_BLOCK
        self.rows[row].state = SWAPPED
        self.rows[row].clean = 0
        for side in range(self.num_sides):
            self.sides[side].clean[row] = 0
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
                wanted += self.c_entry(row, swapped.places[k])[0] == ZERO_BLOCK
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
        cdef int32_t *entry
        cdef int32_t k, filled = 0
        for k in range(swapped.count):
            entry = self.c_entry(row, swapped.places[k])
            if entry[0] == ZERO_BLOCK:
                self.pool.c_take((entry - 1)[0] if swapped.places[k] > self.num_sides else ZERO_BLOCK, 1, entry)
            if -self.num_state_blocks <= swapped.places[k] < self.c_places_for(self.rows[row].position):
                blocks[filled] = entry[0]
                filled += 1
        return filled

    cdef void c_come_back(self, int32_t row) noexcept nogil:
        """The row, whose gaps are filled, is live again, with its token ids."""
        cdef SwappedBlocks *swapped = self.rows[row].swapped
        cdef size_t size = self.block_size
        cdef int32_t k
        for k in range(swapped.count):
            memcpy(
                self.index.tokens + self.c_entry(row, swapped.places[k])[0] * size, swapped.tokens + k * size,
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
        cdef int32_t *entry
        cdef int32_t i, k
        with cython.critical_section(self.pool):
            for i in range(self.c_name(handles, AWAY)):
                swapped = self.rows[self.named[i]].swapped
                for k in range(swapped.count - 1, -1, -1):
                    entry = self.c_entry(self.named[i], swapped.places[k])
                    if entry[0] != ZERO_BLOCK:
                        self.pool.c_decref(entry[0])
                        entry[0] = ZERO_BLOCK
