"""Blocks on a Redis or Valkey server, which several machines share."""

from pagedcache.tiers.redis.tier import RedisTier

__all__ = ["RedisTier"]
