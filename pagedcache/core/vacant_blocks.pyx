"""The vacant blocks of a pool: two stacks, and the choice of which block comes next.

Vacant blocks lie on two int32 stacks: wholly vacant aligned groups of four, and single blocks. A
sequence takes the block after its last one if that is vacant, else opens a group; the group's other
three blocks go onto the single stack, where they wait for the sequence that opened it but may be
taken by anyone once no whole group is left (soft reservation: nothing is wasted). So ids of a
sequence run on, which the prefetch of the reading kernels wants (benchmarks/bars.py prints the mean
run under churn).

Stack entries are not searched for when their block is taken otherwise; they go stale and are dropped
when they surface. A block or group has at most one entry (is_stacked), which bounds the stacks.
"""

from libc.stdint cimport INT32_MAX, int32_t, uint8_t
from libc.stdlib cimport calloc, free, malloc

from pagedcache.core.records cimport BlockRecord, GROUP, NO_NODE, ZERO_BLOCK

import numpy as np

from pagedcache.core._checks import require


cdef enum:
    CACHE_LINE = 64


cdef class VacantBlocks:
    """Records of blocks 1..num_blocks, and the stacks of those that nobody holds and nothing publishes."""

    def __cinit__(self, num_blocks, policy=None):     # the policy is for BlockPool
        cdef int32_t block, last_group
        if isinstance(num_blocks, bool) or not isinstance(num_blocks, (int, np.integer)):
            raise TypeError(f"num_blocks must be an int, not {type(num_blocks).__name__}")
        if not 1 <= num_blocks < INT32_MAX:
            raise ValueError(f"num_blocks is {num_blocks}; a pool has 1 to 2**31 - 2 blocks")
        self.num_blocks = num_blocks
        last_group = self.num_blocks // GROUP
        self.memory = calloc(<size_t>self.num_blocks + 1 + GROUP, sizeof(BlockRecord))
        # Aligned so that a group's four records share a cache line.
        self.records = <BlockRecord *>((<size_t>self.memory + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE)
        self.singles = <int32_t *>malloc((<size_t>self.num_blocks + 1) * sizeof(int32_t))
        self.is_stacked = <uint8_t *>calloc(<size_t>self.num_blocks + 1, 1)
        self.groups = <int32_t *>malloc((<size_t>last_group + 1) * sizeof(int32_t))
        self.group_vacant = <uint8_t *>calloc(<size_t>last_group + 1, 1)
        self.is_group_stacked = <uint8_t *>calloc(<size_t>last_group + 1, 1)
        if not (self.memory and self.singles and self.is_stacked and self.groups
                and self.group_vacant and self.is_group_stacked):
            raise MemoryError(f"no memory for the records of {num_blocks} blocks")
        self.records[ZERO_BLOCK].node = NO_NODE
        for block in range(self.num_blocks, 0, -1):     # so that the lowest ids come off first
            self.records[block].node = NO_NODE
            self.c_put(block)

    def __dealloc__(self):
        free(self.memory)
        free(self.singles)
        free(self.is_stacked)
        free(self.groups)
        free(self.group_vacant)
        free(self.is_group_stacked)

    cdef void c_take(self, int32_t after, int32_t count, int32_t *out) noexcept nogil:
        """`count` vacant blocks with one reference each, if possible those that follow `after` (0: any).

        The caller has made as many vacant before. Whole groups go at once: most blocks of a prompt.
        """
        cdef BlockRecord *records = self.records
        cdef uint8_t *group_vacant = self.group_vacant
        cdef int32_t block = after, group, k = 0, j
        while k < count:
            block += 1
            if count - k >= GROUP and (block % GROUP == 0 or block == 1):
                group = block // GROUP
                if block == 1 or block > self.num_blocks or group_vacant[group] != GROUP:
                    group = self.c_surface_group()
                if group >= 0:
                    group_vacant[group] = 0
                    self.num_vacant -= GROUP
                    for j in range(GROUP):
                        records[group * GROUP + j].refcount = 1
                        out[k + j] = group * GROUP + j
                    k += GROUP
                    block = group * GROUP + GROUP - 1
                    continue
            if block == 1 or block > self.num_blocks or not self.c_is_vacant(block):
                block = self.c_surface()
            group = block // GROUP
            if self.group_vacant[group] == GROUP:
                self.c_open_group(group, block)
            self.group_vacant[group] -= 1
            self.num_vacant -= 1
            records[block].refcount = 1
            out[k] = block
            k += 1

    cdef void c_take_this(self, int32_t block) noexcept nogil:
        """This vacant block, with one reference."""
        if self.group_vacant[block // GROUP] == GROUP:
            self.c_open_group(block // GROUP, block)
        self.group_vacant[block // GROUP] -= 1
        self.num_vacant -= 1
        self.records[block].refcount = 1

    cdef int32_t c_surface(self) noexcept nogil:
        """The first block of a wholly vacant group, or else a single one; drops stale entries."""
        cdef int32_t entry = self.c_surface_group()
        if entry >= 0:
            return entry * GROUP
        while True:
            self.num_singles -= 1
            entry = self.singles[self.num_singles]
            self.is_stacked[entry] = False
            if self.c_is_vacant(entry):
                return entry

    cdef inline int32_t c_surface_group(self) noexcept nogil:
        """A wholly vacant group, or -1; drops stale entries."""
        cdef int32_t entry
        while self.num_groups > 0:
            self.num_groups -= 1
            entry = self.groups[self.num_groups]
            self.is_group_stacked[entry] = False
            if self.group_vacant[entry] == GROUP:
                return entry
        return -1

    cdef void c_open_group(self, int32_t group, int32_t taken) noexcept nogil:
        """Leave the rest of the group on the single stack, the lowest id on top."""
        cdef int32_t block
        for block in range(group * GROUP + GROUP - 1, group * GROUP - 1, -1):
            if block != taken:
                self.c_stack_single(block)

    cdef inline void c_stack_single(self, int32_t block) noexcept nogil:
        if not self.is_stacked[block]:
            self.is_stacked[block] = True
            self.singles[self.num_singles] = block
            self.num_singles += 1

    cdef void c_put(self, int32_t block) noexcept nogil:
        """Take back a block that nobody holds and nothing publishes."""
        cdef int32_t group = block // GROUP
        self.num_vacant += 1
        self.group_vacant[group] += 1
        if self.group_vacant[group] < GROUP:
            self.c_stack_single(block)
        else:
            self.c_stack_group(group)

    cdef int c_check_stacks(self) except -1:
        """Every vacant block is on a stack, and every count is right; O(num_blocks)."""
        cdef int32_t block, group, i, vacant = 0
        cdef set stacked = {self.singles[i] for i in range(self.num_singles)}
        cdef set whole = {self.groups[i] for i in range(self.num_groups)}
        cdef dict in_group = {}
        require(len(stacked) == self.num_singles, "a block is on the single stack twice")
        require(len(whole) == self.num_groups, "a group is on the group stack twice")
        for block in range(1, self.num_blocks + 1):
            require(bool(self.is_stacked[block]) == (block in stacked), f"is_stacked of block {block} is wrong")
            if self.c_is_vacant(block):
                vacant += 1
                in_group.setdefault(block // GROUP, []).append(block)
        for group in range(self.num_blocks // GROUP + 1):
            members = in_group.get(group, [])
            require(self.group_vacant[group] == len(members), f"vacant blocks of group {group} miscounted")
            if len(members) == GROUP:
                require(group in whole, f"vacant group {group} is on no stack")
            else:
                require(stacked.issuperset(members), f"a vacant block of group {group} is on no stack")
        require(vacant == self.num_vacant, f"{vacant} vacant blocks, {self.num_vacant} counted")
        return 0
