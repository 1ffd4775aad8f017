from libc.stdint cimport int32_t

from pagedcache.core.step_buffers cimport GroupBuffers, StepBuffers


cdef class Step:
    cdef readonly int32_t block_size    # tokens per block
    cdef StepBuffers buffers            # None once the step is closed
    cdef GroupBuffers group             # the layer group whose arrays this shows
    cdef tuple views                    # steps that show the arrays of each further group, once asked for
    cdef readonly object owner          # the table whose step this is; None for from_arrays
    cdef tuple csr                      # kv_indptr, kv_indices, kv_last_page_len, once asked for
    cdef object told                    # diff, once asked for
    cdef dict worked_out                # memo, once asked for

    cdef StepBuffers c_open(self)
    cdef int c_shut(self) except -1
    cdef tuple c_views(self)
    cdef object c_shared(self, str name, int32_t which)
    cdef object c_grouped(self, str name, int32_t which)
    cdef tuple c_csr(self)
    cdef object c_diff(self)
    cdef tuple c_accepted(self, accepted)
