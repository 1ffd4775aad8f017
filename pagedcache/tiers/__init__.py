"""Slower places where blocks live: host memory, disk, a server."""

from typing import TYPE_CHECKING, Any

from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.protocol import Load, Places, Store, Tier, TierStats

if TYPE_CHECKING:
    from pagedcache.tiers.mooncake import MooncakeTier
    from pagedcache.tiers.redis import RedisTier

__all__ = ["BlockFormat", "Load", "MooncakeTier", "Places", "RedisTier", "Store", "Tier", "TierStats"]


def __getattr__(name: str) -> Any:
    if name == "RedisTier":  # when it is asked for: most caches have none
        from pagedcache.tiers.redis import RedisTier

        return RedisTier
    if name == "MooncakeTier":
        from pagedcache.tiers.mooncake import MooncakeTier

        return MooncakeTier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
