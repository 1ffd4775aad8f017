from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.core.block_pool import BlockPool
from pagedcache.core.prompt_table import PromptTable
from pagedcache.keys import Key, Namespace

class Pin:
    namespace: bytes
    def __new__(cls, pool: BlockPool, room: int, namespace: bytes) -> Self: ...

class PinTable(PromptTable):
    max_pinned: int
    num_pinned: int
    def pin(
        self,
        prompts: Sequence[ArrayLike] | NDArray[np.integer[Any]],
        name: str,
        *,
        namespace: Namespace | bytes | str | None = None,
        keys: Sequence[Sequence[Key] | None] | None = None,
    ) -> int: ...
    def unpin(self, name: str) -> int: ...
    def evict(self, n_blocks: int) -> int: ...
    def demote(
        self,
        prompts: Sequence[ArrayLike] | NDArray[np.integer[Any]],
        *,
        namespace: Namespace | bytes | str | None = None,
        keys: Sequence[Sequence[Key] | None] | None = None,
    ) -> int: ...
