"""Chunked-local attention as ordinary attention: a step whose sequences are cut where chunks begin.

A query of a chunked-local group sees the tokens of its own chunk, up to itself. Kernels know where what is visible
begins for a whole sequence (`kv_starts`). So new tokens of one sequence that lie in several chunks become as many
sequences, over the same block table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["ChunkedStep"]


@dataclass(frozen=True)
class ChunkedStep:
    """What a backend reads of a step (`StepLike`), for one chunked-local group."""

    block_size: int
    num_tokens: int
    qo_indptr: NDArray[np.int32]
    kv_lens: NDArray[np.int32]
    kv_pads: NDArray[np.int32]
    kv_starts: NDArray[np.int32]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    block_tables: NDArray[np.int32]
    group: int
    shared_prefixes: None = None

    @property
    def num_sequences(self) -> int:
        """Pieces."""
        return len(self.kv_lens)

    @property
    def groups(self) -> Sequence[Self]:
        """Its own arrays, under the number of its group."""
        return [self] * (self.group + 1)

    @classmethod
    def of(cls, step: Any, group: int, chunk: int) -> "ChunkedStep":
        """Cut the sequences of a step at each multiple of `chunk` positions; kept in the step's memo.

        Raises
        ------
        ValueError
            New tokens of a sequence are not at positions one after the other, as those of a tree.
        """
        own = step.groups[group]
        if (found := own.memo.get("chunks")) is not None:
            return found  # type: ignore[no-any-return]
        positions, indptr = step.positions, step.qo_indptr
        owner = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        begins = np.zeros(len(positions), bool)
        begins[indptr[:-1][np.diff(indptr) > 0]] = True
        if (positions[1:][~begins[1:]] - positions[:-1][~begins[1:]] != 1).any():
            raise ValueError(
                "new tokens of a tree cannot be cut into chunks: a chunked-local group takes them in a row"
            )
        begins |= positions % chunk == 0
        first = np.flatnonzero(begins)
        stop = np.append(first[1:], len(positions))
        of = owner[first]
        pads = step.kv_pads[of]
        starts = pads + positions[first] // chunk * chunk
        cut = cls(
            block_size=step.block_size,
            num_tokens=len(positions),
            qo_indptr=np.append(first, len(positions)).astype(np.int32),
            kv_lens=(step.kv_lens[of] - (indptr[1:][of] - stop)).astype(np.int32),
            kv_pads=pads,
            kv_starts=np.maximum(own.kv_starts[of], starts).astype(np.int32),
            positions=positions,
            slots=own.slots,
            block_tables=own.block_tables[of],
            group=group,
        )
        own.memo["chunks"] = cut
        return cut
