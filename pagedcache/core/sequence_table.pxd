from libc.stdint cimport int32_t, int64_t

from pagedcache.core.share_table cimport ShareTable


cdef class SequenceTable(ShareTable):
    cdef int64_t c_held(self, int32_t side)
    cdef tuple c_held_by_states(self)
