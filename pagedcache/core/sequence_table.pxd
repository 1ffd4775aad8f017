from libc.stdint cimport int32_t, int64_t

from pagedcache.core.step_table cimport StepTable


cdef class SequenceTable(StepTable):
    cdef int64_t query_tokens   # prompt tokens of all admitted prompts
    cdef int64_t hit_tokens     # of these, found in the prefix cache

    cdef int32_t c_admit(
        self, const int32_t *tokens, int64_t length, int64_t pad, int64_t reserve, int32_t *status
    ) noexcept nogil
    cdef int64_t c_fork(self, int32_t row, int32_t cut) noexcept nogil
    cdef int32_t c_cut(self, const int32_t[::1] cuts, Py_ssize_t i) noexcept nogil
    cdef int c_check_cuts(self, const int32_t[::1] cuts, Py_ssize_t n, str name) except -1
