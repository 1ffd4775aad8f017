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
    at row coordinate ``c = kv_lens[s] - n + i``. With a window W and S sink tokens it sees, cut at c,
    the keys ``[pad, pad + S)`` and ``[max(kv_starts[s], pad, c - W + 1), c]``, pad being
    ``kv_pads[s]``; without a window W is infinite.

    Window, sinks and ALiBi count in positions, which are row coordinates less the pad except
    where `positions` says otherwise: tokens of a speculation tree stand beside each other. A key is
    a sink where its position is below S, and within the window where its position is more than
    the query's less W. Which of the new tokens a query sees at all, `mask` says, else the order
    of their row coordinates.

    A step may also have ``memo``, a dict that lives as long as its arrays stay as they are: there a
    backend keeps what it worked out from them, for the layers to come. Keys begin with its name.
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
    def positions(self) -> Int64:
        """[tokens], position of each new token."""

    @property
    def shared_prefixes(self) -> Int32 | None:
        """[g, 3], or None: first sequence in step order, number of adjacent sequences, and number of
        leading blocks that they share, which lie before the new tokens of each. A backend may
        attend to these once for all of them; the result is the same but for rounding."""

    @property
    def groups(self) -> Sequence[GroupLike]:
        """One per layer group; the step's own arrays are those of the first."""
