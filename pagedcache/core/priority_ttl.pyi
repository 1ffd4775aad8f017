from collections.abc import Iterable

from pagedcache.core.eviction import EvictionPolicy

class PriorityTTL(EvictionPolicy):
    def __init__(self, ttls: Iterable[float | None]) -> None: ...
    def advance(self, seconds: float) -> None: ...
