"""Traces of real requests, replayed: what memory holds, what a prefix cache finds, and how an engine serves them."""

from pagedcache.replay.memory import CONTIGUOUS, replay_memory
from pagedcache.replay.prefix import POLICIES, HitRate, capacities, prefix_hits, replay_prefix
from pagedcache.replay.readers import read_trace
from pagedcache.replay.serve import Served, replay_serve
from pagedcache.replay.shipped import SHIPPED, shipped_trace
from pagedcache.replay.simulated import SimulatedModel
from pagedcache.replay.trace import Trace
from pagedcache.replay.usage import Machine, SlotKind, Usage

__all__ = [
    "CONTIGUOUS",
    "POLICIES",
    "SHIPPED",
    "HitRate",
    "Machine",
    "Served",
    "SimulatedModel",
    "SlotKind",
    "Trace",
    "Usage",
    "capacities",
    "prefix_hits",
    "read_trace",
    "replay_memory",
    "replay_prefix",
    "replay_serve",
    "shipped_trace",
]
