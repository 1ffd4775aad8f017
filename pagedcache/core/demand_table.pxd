from libc.stdint cimport int32_t, int64_t, uint16_t

from pagedcache.core.row_table cimport MAX_STEPS
from pagedcache.core.state_table cimport StateTable
from pagedcache.core.step_buffers cimport GroupArrays, StepArrays, StepBuffers


cdef struct Demand:
    int64_t blocks      # blocks to take from the pool, for copies too
    int64_t copies      # of these, destinations of copies
    int64_t tokens      # new tokens
    int32_t width       # most blocks of any row after the step
    int32_t rows        # sequences named, and extended
    int32_t special     # of these, such as need more than one slot in a block they have
    int32_t withheld    # references off the records while counting: the copiers', and open steps' to their sources
    bint has_looked     # at the sources of open steps
    int32_t wrong       # first entry that cannot be extended, or -1
    bint too_long       # because its count is out of range; else its handle may not be named


cdef class DemandTable(StateTable):
    cdef StepBuffers buffers    # the first of the chain of num_buffers; a list would be emptied by the collector
    cdef StepArrays *step_arrays[MAX_STEPS]     # theirs, for whoever looks at other steps than its own
    cdef GroupArrays *group_arrays[MAX_STEPS]
    cdef int32_t *order         # [num_buffers] buffers of open steps, oldest first; then those that are spare
    cdef int32_t num_open
    cdef int32_t *counts        # [max_sequences + 1] new tokens of each entry of the step
    cdef int32_t *special       # [max_sequences + 1] entries that c_demand left to c_fill
    cdef uint16_t *reach        # [num_blocks + 1] while counting: most tokens that a copier has of a block

    cdef StepBuffers c_buffers(self, int32_t k)
    cdef bint c_has_room(self, StepBuffers buffers, const Demand *demand) noexcept nogil
    cdef Demand c_demand(
        self, StepBuffers buffers, const int64_t *handles, const int32_t *counts, int32_t stride, Py_ssize_t n
    ) noexcept nogil
    cdef bint c_is_simple(
        self, StepBuffers buffers, int32_t row, int32_t last, int32_t offset, int64_t token
    ) noexcept nogil
    cdef void c_demand_blocks(
        self, GroupArrays *group, int32_t i, int32_t have, const int32_t *table, int32_t last, Demand *demand
    ) noexcept nogil
    cdef void c_demand_more(self, StepBuffers buffers, int32_t i, Demand *demand) noexcept nogil
    cdef int64_t c_demand_states(self, int32_t rows) noexcept nogil
    cdef void c_forgo(self, const Demand *demand) noexcept nogil
    cdef void c_withhold_sources(self, Demand *demand) noexcept nogil
    cdef void c_put_back(self, StepBuffers buffers, const Demand *demand) noexcept nogil
