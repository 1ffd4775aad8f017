# The cimport face: same release only, since a cdef class is no ABI.
from pagedcache.core.block_pool cimport BlockPool
from pagedcache.core.prefix_index cimport PrefixIndex
from pagedcache.core.sequence_table cimport SequenceTable
from pagedcache.core.step cimport Step
