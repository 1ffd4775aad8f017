"""Where the bytes of the cache live, and where attention is computed: one folder per backend."""

from pagedcache.backends.protocol import (
    Array,
    Backend,
    Capabilities,
    ChecksAttend,
    HasThreads,
    StepLike,
    Storage,
    WritesAndAttends,
    get,
    names,
)

__all__ = [
    "Array",
    "Backend",
    "Capabilities",
    "ChecksAttend",
    "HasThreads",
    "StepLike",
    "Storage",
    "WritesAndAttends",
    "get",
    "names",
]
