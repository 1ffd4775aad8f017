from libc.stdint cimport int32_t, int64_t

from pagedcache.core.demand_table cimport Demand
from pagedcache.core.state_steps cimport StateSteps
from pagedcache.core.step_buffers cimport GroupArrays, StepBuffers


cdef class StepFiller(StateSteps):
    cdef int64_t num_copies

    cdef void c_fill(self, StepBuffers buffers, const Demand *demand) noexcept nogil
    cdef void c_append_new(self, StepBuffers buffers, int32_t i) noexcept nogil
    cdef void c_fill_tokens(self, StepBuffers buffers, int32_t i) noexcept nogil
    cdef void c_fill_slots(self, int64_t *slots, const int32_t *table, int32_t start, int32_t count) noexcept nogil
    cdef void c_copy_last_block(self, StepBuffers buffers, GroupArrays *group, int32_t side, int32_t i) noexcept nogil
    cdef void c_show(self, StepBuffers buffers, int32_t i) noexcept nogil
    cdef void c_set_depths(self, StepBuffers buffers, const int32_t *depths) noexcept nogil
    cdef void c_find_shared(self, StepBuffers buffers) noexcept nogil
    cdef int32_t c_whole_blocks(self, StepBuffers buffers, int32_t i) noexcept nogil
