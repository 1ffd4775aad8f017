"""The allocator core: who owns which block. Pure bookkeeping, in Cython, cimport-able."""

from pagedcache.core._events import EventKind
from pagedcache.core.arc import ARC
from pagedcache.core.block_pool import BlockPool
from pagedcache.core.eviction import LRU, EvictionPolicy
from pagedcache.core.lfu_da import LFUDA
from pagedcache.core.namespace_quotas import NamespaceQuotas
from pagedcache.core.never_hit_first import NeverHitFirst
from pagedcache.core.priority_ttl import PriorityTTL
from pagedcache.core.results import Admission, AdmitStatus, CacheStats, StateBlocks
from pagedcache.core.s3_fifo import S3FIFO
from pagedcache.core.sequence_table import SequenceTable
from pagedcache.core.step import Step

__all__ = [
    "ARC",
    "LFUDA",
    "LRU",
    "S3FIFO",
    "Admission",
    "AdmitStatus",
    "BlockPool",
    "CacheStats",
    "EventKind",
    "EvictionPolicy",
    "NamespaceQuotas",
    "NeverHitFirst",
    "PriorityTTL",
    "SequenceTable",
    "StateBlocks",
    "Step",
]
