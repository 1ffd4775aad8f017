from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.core._contents import Published, SequenceContents
from pagedcache.core.share_table import ShareTable
from pagedcache.keys import Key, Namespace

class ArchiveTable(ShareTable):
    def contents(self, handle: int) -> SequenceContents: ...
    def published(self) -> Published: ...
    def published_blocks(
        self,
        prompt: ArrayLike,
        *,
        namespace: Namespace | bytes | str | None = None,
        keys: Sequence[Key] | None = None,
    ) -> NDArray[np.int32]: ...
    def admit_swapped(
        self,
        position: int,
        tokens: ArrayLike | None,
        *,
        pad: int = 0,
        namespace: Namespace | bytes | str | None = None,
        keys: Sequence[Key] | None = None,
        priority: int = 0,
        like: int | None = None,
        shared: int = 0,
    ) -> int: ...
    def publish(self, ids: ArrayLike) -> None: ...
