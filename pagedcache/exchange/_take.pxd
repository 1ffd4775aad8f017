"""Memory that another library lends, by DLPack."""

from pagedcache.exchange._dlpack cimport Plain, Versioned


cdef class Borrowed:
    cdef Plain *plain               # one of the two
    cdef Versioned *versioned
