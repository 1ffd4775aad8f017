from numpy.typing import ArrayLike

from pagedcache.core.row_table import RowTable
from pagedcache.core.step import Step

class StepTable(RowTable):
    @property
    def steps_in_flight(self) -> int: ...
    @property
    def open_steps(self) -> tuple[Step, ...]: ...
    def can_extend(
        self, ids: ArrayLike, counts: int | ArrayLike, *, depths: ArrayLike | None = None, cascade: bool = False
    ) -> bool: ...
    def extend(
        self, ids: ArrayLike, counts: int | ArrayLike, *, depths: ArrayLike | None = None, cascade: bool = False
    ) -> Step: ...
    def abandon(self, step: Step) -> None: ...
