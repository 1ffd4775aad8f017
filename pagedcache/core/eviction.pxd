cimport cython
from libc.stdint cimport int32_t, int64_t

from pagedcache.core.prefix_index cimport PrefixIndex
from pagedcache.core.records cimport BlockRecord, NO_NODE, ZERO_BLOCK


cdef class EvictionPolicy:
    cdef BlockRecord *records       # the pool's, [num_blocks + 1]; the policy owns prev and next of idle blocks
    cdef PrefixIndex index          # the pool's, which names the parent of a block; None until a table brings one
    cdef int32_t num_blocks         # of the pool
    cdef int32_t num_idle           # blocks in the policy's care
    cdef bint hears_uses            # whether c_publish, c_hit and c_move are called
    cdef readonly int num_levels    # priorities are 0..num_levels - 1
    cdef readonly int64_t nbytes    # held beside the records

    cdef int c_bind(self, BlockRecord *records, int32_t num_blocks) except -1
    cdef void c_insert(self, int32_t block) noexcept nogil
    cdef void c_remove(self, int32_t block) noexcept nogil
    cdef int32_t c_pop(self) noexcept nogil
    cdef void c_demote(self, int32_t block) noexcept nogil
    cdef void c_tick(self) noexcept nogil
    cdef void c_publish(self, int32_t block, int level) noexcept nogil
    cdef void c_hit(self, int32_t block, int level) noexcept nogil
    cdef void c_move(self, int32_t block, int32_t to) noexcept nogil
    cdef list c_order(self)
    cdef int c_check(self) except -1

    @cython.final
    cdef inline int32_t c_parent(self, int32_t block) noexcept nogil:
        """The block that a published one continues; ZERO_BLOCK where there is none.

        Nor does a block continue another that is not the one which its node names.
        """
        cdef int32_t node = self.records[block].node
        cdef int32_t parent = self.index.nodes[node].parent
        if parent == NO_NODE or self.index.blocks[node] != block:
            return ZERO_BLOCK
        return self.index.blocks[parent]


cdef class LRU(EvictionPolicy):
    pass
