"""What goes wrong in a kernel."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

__all__ = ["PtxFault", "among"]


class PtxFault(Exception):
    """A kernel did what it must not, or what the interpreter does not know; the message says where.

    Parameters
    ----------
    what
        The reason.
    lane
        Index, among the lanes that execute the instruction, of the first one at fault.
    """

    def __init__(self, what: str, lane: int | None = None) -> None:
        super().__init__(what)
        self.lane = lane


@contextmanager
def among(chosen: npt.NDArray[np.bool_]) -> Iterator[None]:
    """Have faults of the lanes that were chosen name them by their index among all."""
    try:
        yield
    except PtxFault as fault:
        if fault.lane is not None:
            fault.lane = int(np.flatnonzero(chosen)[fault.lane])
        raise
