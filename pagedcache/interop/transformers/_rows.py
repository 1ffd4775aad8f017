"""The sequences of a KVCache that are the rows of a batch."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.cache import KVCache

__all__ = ["Rows"]

Ints = NDArray[np.int64]


class Rows:
    """One sequence per row; pads of a row are not stored, and take no memory.

    Attributes
    ----------
    ids : int64 [rows]
        Handles; empty before the first forward.
    length : int
        Tokens of each row, its pads counted.
    pads : int64 [rows]
        Leading tokens of each row that are not stored.
    alike : int64 [rows]
        Rows with the same number hold the same, as far as is known.
    """

    def __init__(self, kv: KVCache) -> None:
        self.kv = kv
        self._forget()

    def _forget(self) -> None:
        self.ids: Ints = np.empty(0, np.int64)
        self.pads: Ints = np.empty(0, np.int64)
        self.alike: Ints = np.empty(0, np.int64)
        self.length = 0

    def begin(self, batch: int) -> None:
        """Make so many empty sequences, or find that there are as many."""
        if len(self.ids) == batch:
            return
        if len(self.ids):
            raise ValueError(
                f"the batch has {batch} rows, and this cache holds {len(self.ids)}: reset() it, or use another one"
            )
        admission = self.kv.admit([[]] * batch)
        if (admission.ids < 0).any():
            self.kv.release(admission.ids[admission.ids >= 0])
            raise ValueError(
                f"a batch of {batch} rows; the cache has room for max_sequences={self.kv.sequences.max_sequences}"
            )
        self.ids = admission.ids
        self.pads = np.zeros(batch, np.int64)
        self.alike = np.zeros(batch, np.int64)

    def advanced(self, count: int, pads: Ints, leaders: Ints | None) -> None:
        """So many tokens more are committed, `pads` of them pads; followers go on from their leaders."""
        if leaders is not None:
            self.kv.reorder(self.ids, leaders)
        self.alike = np.arange(len(self.ids)) if leaders is None else leaders
        self.pads = self.pads + pads
        self.length += count

    def drop(self, count: int) -> None:
        """Forget the last tokens of each row."""
        if count > self.length:
            raise ValueError(f"crop of {count} tokens; the cache holds {self.length}")
        positions = np.maximum(self.length - count - self.pads, 0)
        try:
            self.kv.truncate(self.ids, positions)
        except ValueError as error:
            error.add_note("sliding layers go back no further than the last forward: see activate_past_recording()")
            raise
        self.length -= count
        self.pads = np.minimum(self.pads, self.length)

    def reorder(self, parents: ArrayLike) -> None:
        """Row i goes on from row ``parents[i]``; blocks are shared until one of those who have them writes."""
        parents = np.asarray(parents, np.int64)
        self.kv.reorder(self.ids, parents)
        self._take(parents)

    def select(self, chosen: Ints) -> None:
        """Keep the rows `chosen`, in this order and as often as named."""
        counts = np.bincount(chosen, minlength=len(self.ids))
        queues: list[list[int]] = [[handle] for handle in self.ids.tolist()]
        made: list[Any] = []
        try:
            for count in np.unique(counts[counts > 1]):
                parents = np.flatnonzero(counts == count)
                kids = self.kv.fork(self.ids[parents], int(count) - 1)
                made.append(kids.ravel())
                for parent, row in zip(parents, kids.tolist(), strict=True):
                    queues[parent] += row
        except BaseException:
            self.kv.release(np.concatenate([*made, np.empty(0, np.int64)]))
            raise
        self.kv.release(self.ids[counts == 0])
        self.ids = np.array([queues[row].pop() for row in chosen.tolist()], np.int64)
        self._take(chosen)

    def _take(self, rows: Ints) -> None:
        self.pads, self.alike = self.pads[rows], self.alike[rows]

    def release(self) -> None:
        """Give everything back."""
        ids = self.ids
        self._forget()
        if len(ids):
            self.kv.release(ids)
