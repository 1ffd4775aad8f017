"""Slower places where blocks live: host memory, disk, a server."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.protocol import Load, Places, Store, Tier, TierStats

if TYPE_CHECKING:
    from pagedcache.tiers.disk import DiskTier
    from pagedcache.tiers.host import HostTier
    from pagedcache.tiers.mooncake import MooncakeTier
    from pagedcache.tiers.redis import RedisTier
    from pagedcache.tiers.second_hit import SecondHit
    from pagedcache.tiers.storing import store_blocks

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

_WHEN_ASKED_FOR = {  # most caches have no tier, and disks bring SQLite and calls that not every system has
    "DiskTier": "disk",
    "HostTier": "host",
    "MooncakeTier": "mooncake",
    "RedisTier": "redis",
    "SecondHit": "second_hit",
    "store_blocks": "storing",
}


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_WHEN_ASKED_FOR[name]}"), name)
    return value
