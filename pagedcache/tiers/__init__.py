"""Slower places where blocks live: host memory, disk, a server."""

from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.protocol import Load, Places, Store, Tier, TierStats

__all__ = ["BlockFormat", "Load", "Places", "Store", "Tier", "TierStats"]
