from libc.stdint cimport int32_t, int64_t

from pagedcache.core.archive_table cimport ArchiveTable


cdef class SequenceTable(ArchiveTable):
    cdef int64_t c_held(self, int32_t side)
    cdef tuple c_held_by_states(self)
