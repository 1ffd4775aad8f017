from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.core.commit_table import CommitTable
from pagedcache.core.results import Admission
from pagedcache.keys import Key, Namespace

class PromptTable(CommitTable):
    def admit(
        self,
        prompts: Sequence[ArrayLike] | NDArray[np.integer[Any]],
        *,
        namespace: Namespace | bytes | str | None = None,
        keys: Sequence[Sequence[Key] | None] | None = None,
        reserve: int | ArrayLike = 0,
        pads: ArrayLike | None = None,
        priority: int = 0,
    ) -> Admission: ...
    def match(
        self,
        prompts: Sequence[ArrayLike] | NDArray[np.integer[Any]],
        *,
        namespace: Namespace | bytes | str | None = None,
        keys: Sequence[Sequence[Key] | None] | None = None,
        by_group: bool = False,
    ) -> NDArray[np.int32]: ...
