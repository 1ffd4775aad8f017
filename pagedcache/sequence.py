"""A look at one live sequence."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedcache.core import SequenceTable

__all__ = ["Sequence"]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence of a cache, asked anew at each access; InvalidSequence once it is released.

    Attributes
    ----------
    table : SequenceTable
        The table that holds it.
    id : int
        Its handle.
    """

    table: SequenceTable
    id: int

    @property
    def position(self) -> int:
        """Next row coordinate: committed tokens and left pads."""
        return self.table.position(self.id)

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self.table.length(self.id)

    @property
    def block_table(self) -> NDArray[np.int32]:
        """int32 [blocks]: a copy of the block table, blocks allotted ahead included."""
        return self.table.block_table(self.id)
