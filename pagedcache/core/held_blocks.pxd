cimport cython
from libc.stdint cimport int32_t, int64_t

from pagedcache.core.eviction cimport EvictionPolicy
from pagedcache.core.fence_queue cimport FenceQueue
from pagedcache.core.prefix_index cimport PrefixIndex
from pagedcache.core.records cimport BlockRecord
from pagedcache.core.vacant_blocks cimport VacantBlocks


cdef class HeldBlocks(VacantBlocks):
    cdef readonly int32_t peak_used     # most blocks ever held at once
    cdef readonly int64_t evictions     # cached blocks given up for new content
    cdef readonly EvictionPolicy policy  # orders the idle cached blocks
    cdef PrefixIndex index              # None until a SequenceTable brings one
    cdef FenceQueue fences              # blocks that unfinished work may still read

    cdef void c_make_vacant(self, int32_t count) noexcept nogil
    cdef int c_attach(self, PrefixIndex index) except -1
    cdef int32_t c_drop(self, const int32_t *blocks, int32_t count) noexcept nogil
    cdef void c_keep(self, int32_t block) noexcept nogil
    cdef void c_evict(self, int32_t block) noexcept nogil
    cdef void c_forget_companions(self, int32_t node) noexcept nogil
    cdef int32_t c_let_go(self, int32_t block) noexcept nogil
    cdef int32_t c_retire(self, int64_t fence) noexcept nogil
    cdef int32_t c_forget(self, int32_t block) noexcept nogil
    cdef int c_detach(self) except -1
    cdef int32_t c_waiting(self) noexcept nogil
    cdef int32_t c_shared(self) noexcept nogil
    cdef int c_check(self) except -1
    cdef int c_check_order(self) except -1

    # What other modules inline.

    @cython.final
    cdef inline int32_t c_usable(self) noexcept nogil:
        """Blocks that can be taken now: vacant, or cached and idle."""
        return self.num_vacant + self.policy.num_idle

    @cython.final
    cdef inline void c_incref(self, int32_t block) noexcept nogil:
        """One more reference to a held or cached block."""
        if self.records[block].refcount == 0:
            self.policy.c_remove(block)
        self.records[block].refcount += 1

    @cython.final
    cdef inline void c_share(self, const int32_t *blocks, int32_t count) noexcept nogil:
        """One more reference to each of these blocks, which somebody holds."""
        cdef BlockRecord *records = self.records
        cdef int32_t k
        for k in range(count):
            records[blocks[k]].refcount += 1

    @cython.final
    cdef inline int32_t c_decref(self, int32_t block) noexcept nogil:
        """Drop one reference; 1 if the block became usable, else 0."""
        self.records[block].refcount -= 1
        if self.records[block].refcount > 1 or (self.records[block].refcount == 1 and not self.fences.c_has(block)):
            return 0
        return self.c_let_go(block)

    @cython.final
    cdef inline void c_note_peak(self) noexcept nogil:
        self.peak_used = max(self.peak_used, self.num_blocks - self.c_usable())
