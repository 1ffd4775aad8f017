"""Slower places where blocks live: host memory, disk, a server."""

from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.disk import DiskTier
from pagedcache.tiers.protocol import Load, Places, Store, Tier, TierStats

__all__ = ["BlockFormat", "DiskTier", "Load", "Places", "Store", "Tier", "TierStats"]
