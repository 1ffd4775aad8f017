"""The allocator core: who owns which block. Pure bookkeeping, in Cython, cimport-able."""

from pagedcache.core.block_pool import BlockPool
from pagedcache.core.results import Admission, AdmitStatus, CacheStats
from pagedcache.core.sequence_table import SequenceTable
from pagedcache.core.step import Step

__all__ = ["Admission", "AdmitStatus", "BlockPool", "CacheStats", "SequenceTable", "Step"]
