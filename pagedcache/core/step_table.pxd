from libc.stdint cimport int32_t, int64_t

from pagedcache.core.row_table cimport RowTable
from pagedcache.core.step cimport Step, StepBuffers


cdef struct Demand:
    int64_t blocks      # new blocks, destinations of copies included
    int64_t copies      # of these, destinations of copies
    int64_t tokens      # new tokens
    int64_t shown       # table entries to write
    int32_t width       # most blocks of any row after the step
    int32_t rows        # sequences named
    int32_t wrong       # first entry that cannot be extended, or -1
    bint too_long       # because it would pass max_length; else its handle may not be named


cdef class StepTable(RowTable):
    cdef StepBuffers buffers    # bound once, filled by every extend
    cdef Step step              # the open step, or None
    cdef int32_t *counts        # [max_sequences] new tokens of each entry of the step
    cdef int32_t *copiers       # [max_sequences] entries of the step whose last block must be copied first, in order
    cdef int64_t num_copies
    cdef Demand c_demand(
        self, const int64_t *handles, const int32_t *counts, int32_t stride, Py_ssize_t n
    ) noexcept nogil
    cdef bint c_is_copied_beyond(self, int32_t block, int32_t position, int32_t copies) noexcept nogil
    cdef void c_fill(self, const int64_t *handles, const Demand *demand) noexcept nogil
    cdef void c_append_new(self, int32_t row, int32_t need) noexcept nogil
    cdef void c_fill_tokens(self, int32_t row, int32_t i, int32_t first, int32_t count) noexcept nogil
    cdef void c_copy_last_block(self, int32_t row) noexcept nogil
    cdef void c_show_table(self, int32_t row, int32_t i, int32_t need) noexcept nogil
    cdef void c_finish_row(self, int32_t i) noexcept nogil
    cdef int c_require_current(self, Step step) except -1
    cdef int c_close(self) except -1
    cdef bint c_has_room(self, const Demand *demand) noexcept nogil
    cdef Demand c_payable_demand(self, const int64_t[::1] handles, const int32_t[::1] counts) except *
    cdef Demand c_checked_demand(self, const int64_t[::1] handles, const int32_t[::1] counts) except *
