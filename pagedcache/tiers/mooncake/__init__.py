"""Blocks in a Mooncake Store, the memory of several machines together."""

from pagedcache.tiers.mooncake.tier import MooncakeTier

__all__ = ["MooncakeTier"]
