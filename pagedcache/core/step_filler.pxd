from libc.stdint cimport int32_t, int64_t, uint16_t

from pagedcache.core.row_table cimport MAX_STEPS, RowTable
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
    bint too_long       # because it would pass max_length; else its handle may not be named


cdef class StepFiller(RowTable):
    cdef StepBuffers buffers    # the first of the chain of num_buffers; a list would be emptied by the collector
    cdef StepArrays *step_arrays[MAX_STEPS]     # theirs, for whoever looks at other steps than its own
    cdef GroupArrays *group_arrays[MAX_STEPS]
    cdef int32_t *order         # [num_buffers] buffers of open steps, oldest first; then those that are spare
    cdef int32_t num_open
    cdef int32_t *counts        # [max_sequences + 1] new tokens of each entry of the step
    cdef int32_t *special       # [max_sequences + 1] entries that c_demand left to c_fill
    cdef uint16_t *reach        # [num_blocks + 1] while counting: most tokens that a copier has of a block
    cdef int64_t num_copies

    cdef StepBuffers c_buffers(self, int32_t k)
    cdef bint c_has_room(self, StepBuffers buffers, const Demand *demand) noexcept nogil
    cdef Demand c_demand(
        self, StepBuffers buffers, const int64_t *handles, const int32_t *counts, int32_t stride, Py_ssize_t n
    ) noexcept nogil
    cdef void c_demand_more(self, StepBuffers buffers, int32_t i, Demand *demand) noexcept nogil
    cdef void c_forgo(self, const Demand *demand) noexcept nogil
    cdef void c_withhold_sources(self, Demand *demand) noexcept nogil
    cdef void c_put_back(self, StepBuffers buffers, const Demand *demand) noexcept nogil
    cdef void c_fill(self, StepBuffers buffers, const Demand *demand) noexcept nogil
    cdef void c_append_new(self, StepBuffers buffers, int32_t i, int32_t need) noexcept nogil
    cdef void c_fill_tokens(self, StepBuffers buffers, int32_t i) noexcept nogil
    cdef void c_copy_last_block(self, StepBuffers buffers, int32_t i) noexcept nogil
    cdef void c_show_table(self, StepBuffers buffers, int32_t i, int32_t need) noexcept nogil
    cdef void c_set_depths(self, StepBuffers buffers, const int32_t *depths) noexcept nogil
    cdef void c_find_shared(self, StepBuffers buffers) noexcept nogil
    cdef int32_t c_whole_blocks(self, StepBuffers buffers, int32_t i) noexcept nogil
