from libc.stdint cimport int32_t, int64_t

from pagedcache.core.demand_table cimport DemandTable
from pagedcache.core.step_buffers cimport StepArrays


cdef class StateSteps(DemandTable):
    cdef void c_fill_states(self, const StepArrays *arrays, int32_t rows) noexcept nogil
    cdef void c_take_back_states(self, const StepArrays *arrays) noexcept nogil
    cdef void c_take_back_state(self, const StepArrays *arrays, int32_t i) noexcept nogil
    cdef void c_commit_states(self, const StepArrays *arrays, const int64_t *ends) noexcept nogil
    cdef int c_require_whole(self, const StepArrays *arrays, const int64_t[::1] ends) except -1
    cdef int64_t c_held_states(self, int32_t first, int32_t stop) noexcept nogil
