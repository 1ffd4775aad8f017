from collections.abc import Iterable
from typing import Self

from pagedcache.core.eviction import EvictionPolicy

def nanoseconds(seconds: float, name: str) -> int: ...

class PriorityTTL(EvictionPolicy):
    def __new__(cls, ttls: Iterable[float | None]) -> Self: ...
    def advance(self, seconds: float) -> None: ...
