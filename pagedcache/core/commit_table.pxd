from libc.stdint cimport int32_t, int64_t

from pagedcache.core.arguments cimport Int32s
from pagedcache.core.step cimport Step
from pagedcache.core.step_buffers cimport StepBuffers
from pagedcache.core.step_table cimport StepTable


cdef struct Accepted:
    const int32_t *path     # accepted indices, sequence after sequence; NULL: all of them
    const int64_t *ends     # [n + 1]


cdef class CommitTable(StepTable):
    cdef int64_t num_adopted    # blocks given up at commit for an equal published one

    cdef int c_check_commit(self, Step step, Int32s tokens, const int64_t[::1] ends) except -1
    cdef int c_reserve_deferred(self, StepBuffers buffers) except -1
    cdef int32_t c_commit(self, StepBuffers buffers, const int32_t *tokens, Accepted accepted) noexcept nogil
    cdef void c_use_copies(self, StepBuffers buffers) noexcept nogil
    cdef void c_advance(self, int32_t row, StepBuffers buffers, int32_t i, const int32_t *tokens) noexcept nogil
    cdef void c_accept(
        self, int32_t row, StepBuffers buffers, int32_t i, const int32_t *tokens, Accepted accepted
    ) noexcept nogil
    cdef int32_t c_publish(self, int32_t row) noexcept nogil
    cdef void c_publish_side(self, int32_t side, int32_t row, int32_t j, int32_t node) noexcept nogil
    cdef void c_slide(self, int32_t row) noexcept nogil
    cdef int c_require_path(self, Step step) except -1
    cdef void c_publish_rest(self, int32_t row) noexcept nogil
    cdef void c_give_up(self, int32_t row, int32_t block) noexcept nogil
