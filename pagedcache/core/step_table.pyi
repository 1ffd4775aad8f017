from typing import Any

from numpy.typing import ArrayLike

from pagedcache.core.row_table import RowTable
from pagedcache.core.step import Step

class StepTable(RowTable):
    def can_extend(
        self, ids: ArrayLike, counts: int | ArrayLike, *, depths: Any = None, cascade: bool = False
    ) -> bool: ...
    def extend(self, ids: ArrayLike, counts: int | ArrayLike, *, depths: Any = None, cascade: bool = False) -> Step: ...
    def commit(self, step: Step, tokens: ArrayLike | None, accepted: Any = None) -> int: ...
    def abandon(self, step: Step) -> None: ...
