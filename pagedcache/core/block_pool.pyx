"""Who holds which block: reference counts, vacant blocks, idle cached blocks. No bytes, no sequences.

Every block is in one of three states, told by its record:

    held     refcount > 0                     in block tables, pinned, with a caller, or waiting for a fence
    cached   refcount = 0, node >= 0          idle, findable; in the eviction policy's list
    vacant   refcount = 0, node = NO_NODE     on a stack

The vacant ones are vacant_blocks' to hand out and take back.

One lock: the critical section of the pool guards it and everything built on it.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc

from pagedcache.core.arguments cimport FREE_THREADED, Int32s, int32s_of, new_int32s, own_int32s
from pagedcache.core.eviction cimport LRU, EvictionPolicy
from pagedcache.core.fence_queue cimport FenceQueue
from pagedcache.core.prefix_index cimport LOOKAHEAD, PrefixIndex, prefetch
from pagedcache.core.records cimport BlockRecord, GROUP, NO_NODE, ZERO_BLOCK
from pagedcache.core.vacant_blocks cimport VacantBlocks

import numpy as np

from pagedcache.core._checks import require
from pagedcache.errors import InvalidBlock, OutOfBlocks


cdef enum:
    AHEAD = 16      # records to fetch before they are needed
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
cdef class BlockPool(VacantBlocks):
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
        if policy is not None and (not isinstance(policy, EvictionPolicy) or type(policy) is EvictionPolicy):
            raise TypeError(f"policy must be an LRU, a PriorityTTL or their like, not {type(policy).__name__}")
        self.policy = LRU() if policy is None else policy
        with cython.critical_section(self.policy):      # another thread may offer it to a pool of its own
            self.policy.c_bind(self.records, self.num_blocks)
        self.fences = FenceQueue()
        self.fences.records = self.records
        self.fences.num_blocks = self.num_blocks

    def __dealloc__(self):
        free(self.callers)

    def __reduce__(self):
        raise TypeError("a BlockPool cannot be pickled or copied: make a new one of the same num_blocks")

    def __repr__(self):
        return f"BlockPool(num_blocks={self.num_blocks}, used={self.num_used}, cached={self.num_cached})"

    # -- the C face; every call needs the pool's critical section --------------------------------

    cdef void c_make_vacant(self, int32_t count) noexcept nogil:
        """Evict until `count` blocks are vacant; the caller knows that count <= c_usable().

        Done once per verb for all its blocks, so that evicted neighbours can form whole groups again.
        """
        cdef int32_t victims[LOOKAHEAD]
        cdef int32_t k, n
        if self.num_vacant < count:
            self.policy.c_tick()
        while self.num_vacant < count:
            n = min(count - self.num_vacant, <int32_t>LOOKAHEAD)
            for k in range(n):          # some at a time, so that their cache misses overlap
                victims[k] = self.policy.c_pop()
                prefetch(&self.index.nodes[self.records[victims[k]].node])
            for k in range(n):
                self.index.c_prefetch_slot(self.records[victims[k]].node)
            for k in range(n):
                self.index.c_remove(self.records[victims[k]].node)
                self.records[victims[k]].node = NO_NODE
                self.c_put(victims[k])
            self.evictions += n

    cdef int32_t c_let_go(self, int32_t block) noexcept nogil:
        """The last holder is gone: take the block back, keep it as cached where it can be found; 1 if usable now.

        While submitted work may read it, it waits: the only reference left is the fence queue's.
        """
        if self.fences.c_pending():
            self.records[block].refcount = 1
            self.fences.c_push(block)
            return 0
        self.c_keep(block)
        return 1

    cdef void c_keep(self, int32_t block) noexcept nogil:
        """Nobody has the block any more: onto a stack, or into the policy's care."""
        if self.records[block].node == NO_NODE:
            self.c_put(block)
        else:
            self.policy.c_insert(block)

    cdef int32_t c_retire(self, int64_t fence) noexcept nogil:
        """All work that `fence` covers is done: blocks that waited for no more than that; how many became usable."""
        cdef int32_t block, usable = 0
        self.fences.retired = max(self.fences.retired, fence)
        self.policy.c_tick()
        block = self.fences.c_pop()
        while block != ZERO_BLOCK:
            self.records[block].refcount -= 1
            if self.records[block].refcount == 0:
                usable += 1
                self.c_keep(block)
            block = self.fences.c_pop()
        return usable

    cdef int32_t c_forget(self, int32_t block) noexcept nogil:
        """Take a block, whose node is removed already, out of the prefix cache; 1 if it was idle."""
        self.records[block].node = NO_NODE
        if self.records[block].refcount > 0:
            return 0
        self.policy.c_remove(block)
        self.c_put(block)
        return 1

    cdef int32_t c_drop(self, const int32_t *blocks, int32_t count) noexcept nogil:
        """Drop one reference to each of `count` blocks, the last first; how many became usable."""
        cdef int32_t k = count, usable = 0, j
        cdef bint pending = self.fences.c_pending()
        cdef BlockRecord *records = self.records
        self.policy.c_tick()
        while k > 0:
            if records[blocks[k - 1]].refcount > 1 and not pending:     # forks: somebody else has it too
                k -= 1
                records[blocks[k]].refcount -= 1
                continue
            if k > AHEAD:
                prefetch(&records[blocks[k - 1 - AHEAD]])
            if k >= GROUP and not pending and self.c_is_lone_group(blocks + k - GROUP):
                k -= GROUP
                usable += GROUP
                for j in range(GROUP):
                    records[blocks[k] + j].refcount = 0
                self.c_put_group(blocks[k])
            else:
                k -= 1
                usable += self.c_decref(blocks[k])
        return usable

    cdef int32_t c_waiting(self) noexcept nogil:
        """Blocks that only the fence queue holds."""
        cdef int32_t _k, waiting = 0, block = self.fences.first
        for _k in range(self.fences.count):
            waiting += self.records[block].refcount == 1
            block = self.records[block].next
        return waiting

    cdef int32_t c_shared(self) noexcept nogil:
        """Blocks held more than once."""
        cdef int32_t block, shared = 0
        for block in range(1, self.num_blocks + 1):
            shared += self.records[block].refcount > 1
        return shared

    cdef int c_attach(self, PrefixIndex index) except -1:
        if self.index is not None:
            raise ValueError("the pool has a SequenceTable already; give each table a pool of its own")
        self.index = index
        self.policy.index = index
        return 0

    cdef int c_detach(self) except -1:
        """The table is gone, and its references with it: nothing can be found any more, and nobody retires fences."""
        self.c_retire(self.fences.current)
        self.c_make_vacant(self.c_usable())
        self.index = None
        self.policy.index = None
        return 0

    # -- the Python face --------------------------------------------------------------------------

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
        cdef int32_t block, idle = 0
        self.c_check_stacks()
        for block in range(1, self.num_blocks + 1):
            require(self.callers[block] >= 0, f"callers hold block {block} {self.callers[block]} times")
            require(self.records[block].refcount >= self.callers[block] + self.fences.c_has(block),
                    f"block {block} lacks references")
            if self.records[block].node != NO_NODE:
                require(self.index is not None and self.index.blocks[self.records[block].node] == block,
                        f"node {self.records[block].node} does not name block {block}")
                idle += self.records[block].refcount == 0
        self.fences.c_check()
        require(idle == self.policy.num_idle, f"{idle} cached blocks, {self.policy.num_idle} in the policy")
        if self.index is not None:
            self.index.check()
            self.c_check_order()
        return 0

    cdef int c_check_order(self) except -1:
        """The policy orders exactly the idle blocks, each after the blocks that continue it."""
        cdef set seen = set()
        cdef int32_t block, parent
        cdef dict waiting = {}
        for block in self.policy.c_order():
            require(block not in seen, f"the policy has block {block} twice")
            seen.add(block)
            require(self.records[block].refcount == 0, f"the policy has block {block}, which is held")
            node = self.records[block].node
            require(waiting.get(node, 0) == self.index.nodes[<int32_t>node].children,
                    f"block {block} would be evicted before a block that continues it")
            parent = self.index.nodes[<int32_t>node].parent
            waiting[parent] = waiting.get(parent, 0) + 1
        require(len(seen) == self.policy.num_idle, f"{len(seen)} blocks in the policy's order")
        return 0
