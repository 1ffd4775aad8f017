from collections.abc import Mapping

from pagedcache.core.eviction import LRU
from pagedcache.keys import Namespace

class NamespaceQuotas(LRU):
    def __init__(self, quotas: Mapping[Namespace | bytes | str | None, int]) -> None: ...
