"""Blocks in a folder: `DiskTier`. The files are described in docs/disk_format.md."""

from pagedcache.tiers.disk.tier import DiskTier

__all__ = ["DiskTier"]
