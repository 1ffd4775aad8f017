"""Slower places where blocks live: host memory, disk, a server."""

from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.disk import DiskTier
from pagedcache.tiers.host import HostTier
from pagedcache.tiers.protocol import Load, Places, Store, Tier, TierStats
from pagedcache.tiers.second_hit import SecondHit
from pagedcache.tiers.storing import store_blocks

__all__ = [
    "BlockFormat",
    "DiskTier",
    "HostTier",
    "Load",
    "Places",
    "SecondHit",
    "Store",
    "Tier",
    "TierStats",
    "store_blocks",
]
