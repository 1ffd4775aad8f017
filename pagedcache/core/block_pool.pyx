"""The pool of blocks, as callers see it: blocks by number, and the references that they hold themselves.

The references of callers are counted apart from those of sequences, so that nobody can drop what is a sequence's.
What a reference means is held_blocks'.

One lock: the critical section of the pool guards it and everything built on it.
"""

cimport cython
from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free, malloc

from pagedcache.core.arguments cimport FREE_THREADED, Int32s, int32s_of, new_int32s, own_int32s
from pagedcache.core.held_blocks cimport HeldBlocks
from pagedcache.core.records cimport BlockRecord, GROUP, ZERO_BLOCK

import numpy as np

from pagedcache.core._checks import require
from pagedcache.errors import InvalidBlock, OutOfBlocks


cdef enum:
    FEW = 256       # blocks whose ids find room on the stack


cdef bint all_one(const int32_t *counts) noexcept nogil:
    """Whether a group's counts are all 1."""
    return counts[0] == 1 and counts[1] == 1 and counts[2] == 1 and counts[3] == 1


cdef Int32s block_ids(values):
    """int32 [n] of block ids, which no other thread can change; what is no int32 is no block."""
    try:
        return own_int32s(values, "blocks") if FREE_THREADED else int32s_of(values, "blocks")
    except ValueError as error:
        raise InvalidBlock(str(error)) from None


@cython.no_gc_clear    # a table that is collected still gives its blocks back
cdef class BlockPool(HeldBlocks):
    """Reference-counted ids of `num_blocks` blocks.

    Ids are 1..num_blocks; id 0 is the reserved zero block, which is never handed out.

    Parameters
    ----------
    num_blocks : int
        Usable blocks, 1..2**31 - 2.
    policy : EvictionPolicy, optional
        Which idle cached block gives way first, a policy of this pool's own; by default `LRU`.

    Examples
    --------
    >>> pool = BlockPool(8)
    >>> ids = pool.allocate(3)
    >>> pool.num_free
    5
    >>> pool.decref(ids)
    3
    """

    def __cinit__(self, num_blocks, policy=None):
        self.callers = <int32_t *>calloc(<size_t>self.num_blocks + 1, sizeof(int32_t))
        if not self.callers:
            raise MemoryError(f"no memory for {num_blocks} blocks")

    def __dealloc__(self):
        free(self.callers)

    def __reduce__(self):
        raise TypeError("a BlockPool cannot be pickled or copied: make a new one of the same num_blocks")

    def __repr__(self):
        return f"BlockPool(num_blocks={self.num_blocks}, used={self.num_used}, cached={self.num_cached})"

    @property
    def num_free(self):
        """Blocks usable now: vacant ones, and cached ones that nobody holds."""
        return self.c_usable()

    @property
    def num_used(self):
        """Blocks that are held; each counts once, however many share it."""
        return self.num_blocks - self.c_usable()

    @property
    def num_cached(self):
        """Idle blocks that a prefix match can still find."""
        return self.policy.num_idle

    @property
    def num_waiting(self):
        """Blocks that nobody holds and that are not usable before a fence retires: unfinished work may read them."""
        with cython.critical_section(self):
            return self.c_waiting()

    @property
    def num_shared(self):
        """Blocks held more than once. O(num_blocks)."""
        with cython.critical_section(self):
            return self.c_shared()

    @property
    def nbytes(self):
        """Bytes of bookkeeping held by the pool itself and its policy."""
        return ((self.num_blocks + 1) * (sizeof(BlockRecord) + 2 * sizeof(int32_t) + 1)
                + (self.num_blocks // GROUP + 1) * (sizeof(int32_t) + 2) + self.policy.nbytes)

    @cython.critical_section
    def allocate(self, count, after=ZERO_BLOCK):
        """Take `count` blocks, each with one reference that belongs to the caller.

        Parameters
        ----------
        count : int
        after : int, optional
            The block that the first one should follow, if that is vacant: so that ids of a stream run on.

        Returns
        -------
        int32 [count]
            Block ids, in runs of consecutive ids where possible.

        Raises
        ------
        OutOfBlocks
            Fewer than `count` blocks are usable; nothing was changed.
        """
        cdef int32_t n, i, first
        if type(count) is not int and (isinstance(count, bool) or not isinstance(count, np.integer)):
            raise TypeError(f"count must be an int, not {type(count).__name__}")
        if count < 0:
            raise ValueError(f"count is {count}; it must be 0 or more")
        n = min(count, self.num_blocks)
        cdef int32_t *out
        ids = new_int32s(n, &out)
        if not 0 <= after <= self.num_blocks:
            raise InvalidBlock(f"after is {after}; it must be a block id, 1..{self.num_blocks}, or 0 for none")
        first = after
        if count > self.c_usable():
            raise OutOfBlocks(f"{count} blocks wanted, {self.c_usable()} of {self.num_blocks} are usable")
        if n > 0:
            self.c_make_vacant(n)
            self.c_take(first, n, out)
            for i in range(n):
                self.callers[out[i]] = 1
            self.c_note_peak()
        return ids

    @cython.critical_section
    def incref(self, blocks):
        """Add one reference to each of `blocks` (int32 [n], repeats allowed), which the caller holds already.

        Raises
        ------
        InvalidBlock
            An id is out of range, or names a block that no caller has from `allocate`; nothing was
            changed. Blocks of a sequence are shared by forking it.
        """
        cdef Int32s ids = block_ids(blocks)
        cdef Py_ssize_t i
        for i in range(ids.n):
            if not 1 <= ids.data[i] <= self.num_blocks or self.callers[ids.data[i]] <= 0:
                raise self.c_not_a_callers(ids.data[i])
        for i in range(ids.n):
            self.records[ids.data[i]].refcount += 1
            self.callers[ids.data[i]] += 1

    cdef object c_not_a_callers(self, int32_t block):
        """The error for a block of which no caller holds a reference, or none that is left."""
        if not 1 <= block <= self.num_blocks:
            return InvalidBlock(f"block {block} is out of range; ids are 1..{self.num_blocks}")
        return InvalidBlock(
            f"block {block} is not held through allocate: it was freed before, never taken, or is a sequence's "
            "(fork or release that)"
        )

    @cython.critical_section
    def decref(self, blocks):
        """Drop one reference of the caller's from each of `blocks` (int32 [n], repeats allowed).

        Returns
        -------
        int
            Blocks that became usable.

        Raises
        ------
        InvalidBlock
            An id is out of range, or named more often than it is held; nothing was changed.
        """
        cdef Int32s view = block_ids(blocks)
        cdef const int32_t *ids = view.data
        cdef int32_t n = <int32_t>view.n, i, wrong, listed = 0, usable = 0
        cdef int32_t few[FEW]
        cdef int32_t *idle = &few[0]
        if n > FEW:
            idle = <int32_t *>malloc(n * sizeof(int32_t))
        if not idle:
            raise MemoryError(f"no memory to drop {n} blocks")
        wrong = self.c_count_down(ids, n, idle, &listed)
        if wrong >= 0:
            for i in range(wrong):
                self.records[ids[i]].refcount += 1
                self.callers[ids[i]] += 1
            if n > FEW:
                free(idle)
            raise self.c_not_a_callers(ids[wrong])
        for i in range(listed - 1, -1, -1):
            if idle[i] < 0:
                self.c_put_group(-idle[i])
                usable += GROUP
            else:
                usable += self.c_let_go(idle[i])
        if n > FEW:
            free(idle)
        return usable

    cdef int32_t c_count_down(self, const int32_t *ids, int32_t n, int32_t *idle, int32_t *listed) noexcept nogil:
        """Take one off each refcount; the index of the first wrong id, or -1.

        Lists the blocks that reach 0: an id for one, the negated first id for a lone group.
        """
        cdef BlockRecord *records = self.records
        cdef int32_t *callers = self.callers
        cdef bint pending = self.fences.c_pending()
        cdef int32_t i = 0, k
        while i < n:
            if not 1 <= ids[i] <= self.num_blocks or callers[ids[i]] <= 0:
                return i
            if (not pending and ids[i] % GROUP == 0 and i + GROUP <= n and self.c_is_lone_group(ids + i)
                    and all_one(callers + ids[i])):
                for k in range(GROUP):
                    records[ids[i] + k].refcount = 0
                    callers[ids[i] + k] = 0
                idle[listed[0]] = -ids[i]
                listed[0] += 1
                i += GROUP
                continue
            callers[ids[i]] -= 1
            records[ids[i]].refcount -= 1
            if records[ids[i]].refcount == 0:
                idle[listed[0]] = ids[i]
                listed[0] += 1
            i += 1
        return -1

    @cython.critical_section
    def refcount(self, block):
        """References to one block id, 1..num_blocks."""
        cdef int32_t wanted = block_ids([block]).data[0]
        if not 1 <= wanted <= self.num_blocks:
            raise InvalidBlock(f"block {block} is out of range; ids are 1..{self.num_blocks}")
        return self.records[wanted].refcount

    @cython.critical_section
    def refcounts(self):
        """int32 [num_blocks + 1]: a copy of all reference counts, by block id."""
        cdef int32_t block
        cdef int32_t[::1] counts = np.empty(self.num_blocks + 1, np.int32)
        for block in range(self.num_blocks + 1):
            counts[block] = self.records[block].refcount
        return counts.base

    @cython.critical_section
    def check(self):
        """Audit every invariant in O(num_blocks); AssertionError names the first that is broken."""
        self.c_check()

    cdef int c_check(self) except -1:
        """Also that callers hold no more than there is."""
        cdef int32_t block
        HeldBlocks.c_check(self)
        for block in range(1, self.num_blocks + 1):
            require(self.callers[block] >= 0, f"callers hold block {block} {self.callers[block]} times")
            require(self.records[block].refcount >= self.callers[block] + self.fences.c_has(block),
                    f"block {block} lacks references")
        return 0
