"""What backends whose bytes live in the host's memory share: the storage, and the checks of what comes in.

It knows no backend: what one of them computes, and how, stays with it.
"""

from pagedcache.backends.host.storage import HostStorage

__all__ = ["HostStorage"]
