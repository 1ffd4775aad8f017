from libc.stdint cimport int32_t, int64_t

from pagedcache.core.arguments cimport Int32s, Int64s
from pagedcache.core.demand_table cimport Demand
from pagedcache.core.step cimport Step
from pagedcache.core.step_buffers cimport GroupArrays, StepBuffers
from pagedcache.core.step_filler cimport StepFiller


cdef struct Deferred:
    int32_t block
    int64_t step        # serial number of the newest step that was open when the block was given up


cdef class StepTable(StepFiller):
    cdef int64_t serial         # steps opened so far
    cdef int64_t *serials       # [num_buffers] serial numbers of the open steps
    cdef Deferred *deferred     # references given up that wait for open steps, in the order of `step`
    cdef int32_t num_deferred
    cdef int32_t room_deferred
    cdef bint is_growing        # an extend is enlarging its buffers

    cdef StepBuffers c_spare(self)
    cdef Demand c_demanded(self, StepBuffers buffers, Int64s handles, Int32s counts, Int32s depths) except *
    cdef int c_refuse_demand(self, Int64s handles, const Demand *demand) except -1
    cdef void c_take_back(self, StepBuffers buffers, int32_t i, int32_t keep) noexcept nogil
    cdef void c_take_back_copies(self, StepBuffers buffers) noexcept nogil
    cdef void c_drop_sources(self, GroupArrays *group) noexcept nogil
    cdef int c_require_open(self, Step step, bint oldest) except -1
    cdef void c_finish_row(self, int32_t row) noexcept nogil
    cdef int c_close(self, Step step) except -1
