"""The allocator core: who owns which block. Pure bookkeeping, in Cython, cimport-able."""

from pagedcache.core._events import EventKind
from pagedcache.core.block_pool import BlockPool
from pagedcache.core.eviction import LRU, EvictionPolicy
from pagedcache.core.priority_ttl import PriorityTTL
from pagedcache.core.results import Admission, AdmitStatus, CacheStats
from pagedcache.core.sequence_table import SequenceTable
from pagedcache.core.step import Step

__all__ = [
    "LRU",
    "Admission",
    "AdmitStatus",
    "BlockPool",
    "CacheStats",
    "EventKind",
    "EvictionPolicy",
    "PriorityTTL",
    "SequenceTable",
    "Step",
]
