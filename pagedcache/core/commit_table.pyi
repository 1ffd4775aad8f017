from collections.abc import Sequence

from numpy.typing import ArrayLike

from pagedcache.core.step import Step
from pagedcache.core.step_table import StepTable

class CommitTable(StepTable):
    def commit(self, step: Step, tokens: ArrayLike | None, accepted: Sequence[ArrayLike] | None = None) -> int: ...
    def check_commit(
        self, step: Step, tokens: ArrayLike | None, accepted: Sequence[ArrayLike] | None = None
    ) -> None: ...
