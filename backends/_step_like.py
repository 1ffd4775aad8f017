"""What a backend reads of a step."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["GroupLike", "StepLike"]

Int32: TypeAlias = npt.NDArray[np.int32]
Int64: TypeAlias = npt.NDArray[np.int64]


class GroupLike(Protocol):
    """The arrays of one layer group in a step."""

    @property
    def slots(self) -> Int64:
        """[tokens], where the new tokens are written."""

    @property
    def kv_starts(self) -> Int32:
        """[n], first row coordinate that is still held."""

    @property
    def block_tables(self) -> Int32:
        """[n, width], block ids; -1 beyond the live prefix, 0 where released."""


class StepLike(GroupLike, Protocol):
    """The attributes of a step that a backend reads; ``pagedcache.core.Step`` has them.

    Query ``i`` of sequence ``s``, which has ``n = qo_indptr[s+1] - qo_indptr[s]`` of them, stands
    at row coordinate ``kv_lens[s] - n + i`` and sees the keys from ``max(kv_starts[s],
    kv_pads[s])`` to itself.
    """

    @property
    def block_size(self) -> int: ...
    @property
    def num_sequences(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def qo_indptr(self) -> Int32:
        """[n + 1], where each sequence's new tokens begin."""

    @property
    def kv_lens(self) -> Int32:
        """[n], row coordinate where the sequence ends after the step."""

    @property
    def kv_pads(self) -> Int32:
        """[n], how many leading row coordinates are never visible."""

    @property
    def groups(self) -> Sequence[GroupLike]:
        """One per layer group; the step's own arrays are those of the first."""
