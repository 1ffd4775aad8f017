from collections.abc import Sequence

from numpy.typing import ArrayLike

from pagedcache.core.cache_table import CacheTable
from pagedcache.keys import Key, Namespace

class AdoptTable(CacheTable):
    def hold(
        self, prompt: ArrayLike, *, namespace: Namespace | bytes | str | None = None, keys: Sequence[Key] | None = None
    ) -> tuple[int, int]: ...
    def let_go(self, hold: int) -> int: ...
    def adopt(
        self,
        prompt: ArrayLike,
        blocks: ArrayLike,
        *,
        first: int = 0,
        namespace: Namespace | bytes | str | None = None,
        keys: Sequence[Key] | None = None,
        priority: int = 0,
    ) -> int: ...
