from typing import Any

from numpy.typing import NDArray

from pagedcache.core.pin_table import PinTable
from pagedcache.keys import Namespace

class CacheTable(PinTable):
    def reset(self) -> int: ...
    def invalidate(self, *, namespace: Namespace | bytes | str | None) -> int: ...
    def events(self, *, anew: bool = False) -> NDArray[Any]: ...
