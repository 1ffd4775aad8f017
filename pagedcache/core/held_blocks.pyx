"""Which blocks are held, cached and vacant: references, and what becomes of a block that loses its last one.

Every block is in one of three states, told by its record:

    held     refcount > 0                     in block tables, pinned, with a caller, or waiting for a fence
    cached   refcount = 0, node >= 0          idle, findable; in the eviction policy's list
    vacant   refcount = 0, node = NO_NODE     on a stack

The vacant ones are vacant_blocks' to hand out and take back. What stands here is for the core alone, and needs the
critical section of the pool.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t

from pagedcache.core.eviction cimport LRU, EvictionPolicy
from pagedcache.core.fence_queue cimport FenceQueue
from pagedcache.core.prefix_index cimport LOOKAHEAD, PrefixIndex, prefetch
from pagedcache.core.records cimport BlockRecord, GROUP, NO_NODE, ZERO_BLOCK
from pagedcache.core.vacant_blocks cimport VacantBlocks

from pagedcache.core._checks import require


cdef enum:
    AHEAD = 16      # records to fetch before they are needed


@cython.no_gc_clear    # a table that is collected still gives its blocks back
cdef class HeldBlocks(VacantBlocks):
    """References to blocks, whoever holds them; see BlockPool."""

    def __cinit__(self, num_blocks, policy=None):
        if policy is not None and (not isinstance(policy, EvictionPolicy) or type(policy) is EvictionPolicy):
            raise TypeError(f"policy must be an LRU, a PriorityTTL or their like, not {type(policy).__name__}")
        self.policy = LRU() if policy is None else policy
        with cython.critical_section(self.policy):      # another thread may offer it to a pool of its own
            self.policy.c_bind(self.records, self.num_blocks)
        self.fences = FenceQueue()
        self.fences.records = self.records
        self.fences.num_blocks = self.num_blocks

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
            if self.index.num_sides > 0:    # one at a time, since a node may take several blocks along
                self.evictions += 1
                self.c_evict(self.policy.c_pop())
                continue
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

    cdef void c_evict(self, int32_t block) noexcept nogil:
        """Take an idle block, which the policy has given up, out of the prefix cache.

        A node's block of group 0 takes the node along, and so what other groups have of it; theirs go alone.
        """
        cdef int32_t node = self.records[block].node
        if self.index.blocks[node] == block:
            self.c_forget_companions(node)
            self.index.c_remove(node)
        else:
            self.index.c_leave(node, block)
        self.records[block].node = NO_NODE
        self.c_put(block)

    cdef void c_forget_companions(self, int32_t node) noexcept nogil:
        """Take the blocks that side groups have of the node out of the prefix cache."""
        cdef int32_t side, block
        for side in range(self.index.num_sides):
            block = self.index.c_companion(node, side)
            if block != ZERO_BLOCK:
                self.index.c_set_companion(node, side, ZERO_BLOCK)
                self.c_forget(block)

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
        """Take a block, whose node goes next, out of the prefix cache; 1 if it was idle."""
        cdef bint idle = self.records[block].refcount == 0
        if idle:
            self.policy.c_remove(block)
        self.records[block].node = NO_NODE
        if idle:
            self.c_put(block)
        return idle

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

    cdef int c_check(self) except -1:
        """Audit what stands here and below; O(num_blocks)."""
        cdef int32_t block, idle = 0
        self.c_check_stacks()
        for block in range(1, self.num_blocks + 1):
            require(self.records[block].refcount >= self.fences.c_has(block), f"block {block} lacks references")
            if self.records[block].node != NO_NODE:
                require(self.index is not None and self.index.c_has(self.records[block].node, block),
                        f"node {self.records[block].node} does not name block {block}")
                idle += self.records[block].refcount == 0
        self.fences.c_check()
        require(idle == self.policy.num_idle, f"{idle} cached blocks, {self.policy.num_idle} in the policy")
        if self.index is not None:
            self.index.check()
            self.c_check_order()
        self.policy.c_check()
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
            if self.index.blocks[<int32_t>node] != block:
                continue        # of a side group, where any order is right
            require(waiting.get(node, 0) == self.index.c_count_children(node),
                    f"block {block} would be evicted before a block that continues it")
            parent = self.index.nodes[<int32_t>node].parent
            waiting[parent] = waiting.get(parent, 0) + 1
        require(len(seen) == self.policy.num_idle, f"{len(seen)} blocks in the policy's order")
        return 0
