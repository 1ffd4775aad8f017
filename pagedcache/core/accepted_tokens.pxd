from libc.stdint cimport int32_t, int64_t

from pagedcache.core.step_buffers cimport StepBuffers


cdef int check_accepted(StepBuffers buffers, const int32_t[::1] path, const int64_t[::1] ends) except -1
