import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.core.compact_table import CompactTable

class ShareTable(CompactTable):
    def fork(self, ids: ArrayLike, n: int = 1, at: int | ArrayLike | None = None) -> NDArray[np.int64]: ...
    def reorder(self, ids: ArrayLike, parents: ArrayLike) -> None: ...
