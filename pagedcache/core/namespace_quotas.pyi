from collections.abc import Mapping
from typing import Self

from pagedcache.core.eviction import LRU
from pagedcache.keys import Namespace

class NamespaceQuotas(LRU):
    def __new__(cls, quotas: Mapping[Namespace | bytes | str | None, int]) -> Self: ...
