"""Traces of real requests, replayed through the core: what memory holds, and what a prefix cache finds."""

from pagedcache.replay.memory import CONTIGUOUS, replay_memory
from pagedcache.replay.prefix import POLICIES, HitRate, capacities, prefix_hits, replay_prefix
from pagedcache.replay.readers import read_trace
from pagedcache.replay.shipped import SHIPPED, shipped_trace
from pagedcache.replay.trace import Trace
from pagedcache.replay.usage import Machine, SlotKind, Usage

__all__ = [
    "CONTIGUOUS",
    "POLICIES",
    "SHIPPED",
    "HitRate",
    "Machine",
    "SlotKind",
    "Trace",
    "Usage",
    "capacities",
    "prefix_hits",
    "read_trace",
    "replay_memory",
    "replay_prefix",
    "shipped_trace",
]
