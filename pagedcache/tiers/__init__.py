"""Slower places where blocks live: host memory, disk, a server."""

from typing import TYPE_CHECKING, Any

from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.disk import DiskTier
from pagedcache.tiers.host import HostTier
from pagedcache.tiers.protocol import Load, Places, Store, Tier, TierStats
from pagedcache.tiers.second_hit import SecondHit
from pagedcache.tiers.storing import store_blocks

if TYPE_CHECKING:
    from pagedcache.tiers.mooncake import MooncakeTier
    from pagedcache.tiers.redis import RedisTier

__all__ = [
    "BlockFormat",
    "DiskTier",
    "HostTier",
    "Load",
    "MooncakeTier",
    "Places",
    "RedisTier",
    "SecondHit",
    "Store",
    "Tier",
    "TierStats",
    "store_blocks",
]


def __getattr__(name: str) -> Any:
    if name == "RedisTier":  # when it is asked for: most caches have none
        from pagedcache.tiers.redis import RedisTier

        return RedisTier
    if name == "MooncakeTier":
        from pagedcache.tiers.mooncake import MooncakeTier

        return MooncakeTier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
