"""The verbs of KVCache that move blocks: out and back, or closer together; and the fences around all work."""

import functools
import itertools

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache._bookkeeping import Bookkeeping
from pagedcache._layer_places import plane_layers
from pagedcache._swap_room import SwapRoom
from pagedcache.backends import Backend, Storage
from pagedcache.spec import CacheSpec

__all__ = ["Residency"]


class Residency(Bookkeeping):
    """Base of KVCache: which blocks are where, and which work may still read them."""

    spec: CacheSpec
    backend: Backend
    storage: Storage | None
    _swapped: dict[int, list[NDArray[np.uint8]]]  # handle -> records of the blocks swapped out, some to a piece

    # -- asynchronous work ------------------------------------------------------------------------

    def _cover(self) -> None:
        """Blocks that are dropped from here on wait for the work submitted so far."""
        if self.storage is not None and not self.backend.capabilities.synchronous:
            self.sequences.cover(self.backend.fence())

    def synchronize(self) -> int:
        """Wait for all work submitted to the backend; the number of blocks that became usable.

        Of work outside the backend it knows nothing: `retire` says that such work is done.
        """
        with self._open():
            fence = self.backend.fence()
            self.backend.synchronize()
            return self.sequences.retire(fence)

    # -- where blocks are -------------------------------------------------------------------------

    def swap_out(self, ids: ArrayLike) -> int:
        """Move the blocks that only these sequences hold into host memory; shared ones stay.

        The handles are good for `swap_in` and `release` only, until they are back. What these sequences
        have published is found as before, until its memory is wanted.

        Parameters
        ----------
        ids : int64 [n]
            Sequences of no open step.

        Returns
        -------
        int
            Blocks that became usable now.

        Raises
        ------
        ValueError
            The cache is metadata only: see `SequenceTable.swap_list`.
        """
        with self._open():
            if self.storage is None:
                raise ValueError(
                    "the cache is metadata only: save what sequences.swap_list names, then sequences.swap_out"
                )
            return self._swap_out(self.storage, ids)

    def swap_in(self, ids: ArrayLike) -> int:
        """Undo `swap_out`; the number of blocks filled again. OutOfBlocks where they don't fit: nothing is changed."""
        with self._open():
            if self.storage is None:
                raise ValueError("the cache is metadata only: sequences.swap_in says where the saved bytes go")
            blocks = self.sequences.begin_swap_in(ids)
            self._settle()
            handles = np.asarray(ids).tolist()
            saved = [self._swapped[handle] for handle in handles]
            try:
                first = 0
                for piece in itertools.chain(*saved):
                    self.backend.write_blocks(self.storage, blocks[first : first + len(piece)], piece, self._layers())
                    first += len(piece)
                self._cover()
                self.sequences.swap_in(ids)
            except BaseException:
                self._cover()
                left = [handle for handle in handles if handle in self._swapped]  # a finalizer may have released one
                self.sequences.cancel_swap_in(left)
                raise
            for handle in handles:
                self._forget_swapped(handle)
            return len(blocks)

    def _layers(self) -> list[int] | None:
        """Layers whose records are all that a block has, whichever group it is of; None: all of them, in any case."""
        return None if self.spec.num_groups == 1 and not self.spec.shared_layers else plane_layers(self.spec)

    def _swap_out(self, storage: Storage, ids: ArrayLike) -> int:
        """Save the blocks that only `ids` hold, and give them up."""
        handles = np.asarray(ids).tolist()
        usable = -1
        while usable < 0:  # again, if a finalizer has changed who holds what while blocks were read
            blocks, indptr = self.sequences.swap_list(ids)
            saved = [self._room.take(stop - first) for first, stop in itertools.pairwise(indptr.tolist())]
            first = 0
            for piece in itertools.chain(*saved):
                self.backend.read_blocks(storage, blocks[first : first + len(piece)], self._layers(), piece)
                first += len(piece)
            if len(blocks):
                self.synchronize()  # or the records would be used before they are there
            usable = self.sequences.swap_out(ids, blocks)
        self._swapped |= zip(handles, saved, strict=True)
        return usable

    @functools.cached_property
    def _room(self) -> SwapRoom:
        layers = self._layers() or range(self.spec.layers)
        return SwapRoom(len(layers), self.spec.record_nbytes(layers[0]))

    def _forget_swapped(self, handle: int) -> None:
        """The records of a sequence are no longer wanted; where unfinished work may read them, they are not reused."""
        pieces = self._swapped.pop(handle, [])
        if self.backend.capabilities.synchronous:
            self._room.give_back(pieces)

    def release(self, ids: ArrayLike) -> int:
        """Let sequences go; the number of blocks that became usable now. See `SequenceTable.release`."""
        with self._open():
            usable = self.sequences.release(ids)
            if self._swapped:
                for handle in np.asarray(ids).tolist():
                    self._forget_swapped(handle)
            return usable

    def compact(self) -> int:
        """Move blocks so that ids of a sequence run on; the number moved. See `SequenceTable.compact`.

        StepOpen while a step is open; ValueError where the cache is metadata only: see `SequenceTable.compaction`.
        """
        with self._open():
            if self.storage is None:
                raise ValueError(
                    "the cache is metadata only: copy what sequences.compaction names, then sequences.compact"
                )
            moved = -1
            while moved < 0:  # again, if a finalizer has changed who holds what while blocks were copied
                pairs = self.sequences.begin_compaction()
                try:
                    if len(pairs):
                        self.backend.copy_blocks(self.storage, pairs)
                        self._cover()
                except BaseException:
                    self.sequences.cancel_compaction()
                    raise
                moved = self.sequences.compact(pairs)
            return moved
