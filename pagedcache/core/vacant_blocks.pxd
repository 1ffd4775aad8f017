cimport cython
from libc.stdint cimport int32_t, uint8_t

from pagedcache.core.records cimport BlockRecord, GROUP, NO_NODE


cdef class VacantBlocks:
    cdef readonly int32_t num_blocks    # usable blocks; their ids are 1..num_blocks
    cdef BlockRecord *records           # [num_blocks + 1], within memory
    cdef void *memory
    cdef int32_t num_vacant             # blocks that are neither held nor cached
    cdef int32_t *singles               # stack of block ids; an entry whose block was taken is stale
    cdef int32_t num_singles
    cdef uint8_t *is_stacked            # [num_blocks + 1] the block has an entry in singles
    cdef int32_t *groups                # stack of wholly vacant groups; entries may be stale too
    cdef int32_t num_groups
    cdef uint8_t *group_vacant          # [groups] vacant blocks of the group
    cdef uint8_t *is_group_stacked      # [groups] the group has an entry in groups

    cdef void c_take(self, int32_t after, int32_t count, int32_t *out) noexcept nogil
    cdef void c_take_this(self, int32_t block) noexcept nogil
    cdef int32_t c_surface(self) noexcept nogil
    cdef int32_t c_surface_group(self) noexcept nogil
    cdef void c_open_group(self, int32_t group, int32_t taken) noexcept nogil
    cdef void c_stack_single(self, int32_t block) noexcept nogil
    cdef void c_put(self, int32_t block) noexcept nogil
    cdef int c_check_stacks(self) except -1

    @cython.final
    cdef inline bint c_is_vacant(self, int32_t block) noexcept nogil:
        return self.records[block].refcount == 0 and self.records[block].node == NO_NODE

    @cython.final
    cdef inline void c_stack_group(self, int32_t group) noexcept nogil:
        if not self.is_group_stacked[group]:
            self.is_group_stacked[group] = True
            self.groups[self.num_groups] = group
            self.num_groups += 1

    @cython.final
    cdef inline bint c_is_lone_group(self, const int32_t *blocks) noexcept nogil:
        """Whether these four blocks are an aligned group that one holder has, unpublished."""
        cdef const BlockRecord *record = self.records + blocks[0]
        cdef int32_t k
        if blocks[0] % GROUP != 0 or blocks[0] + GROUP > self.num_blocks + 1:
            return False
        for k in range(GROUP):
            if blocks[k] != blocks[0] + k or record[k].refcount != 1 or record[k].node != NO_NODE:
                return False
        return True

    @cython.final
    cdef inline void c_put_group(self, int32_t first) noexcept nogil:
        """Take back four blocks at once, whose references the caller has taken off."""
        self.num_vacant += GROUP
        self.group_vacant[first // GROUP] = GROUP
        self.c_stack_group(first // GROUP)
