"""The verbs of KVCache that read and write states of fixed size, for models that run on the host."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache._layer_places import StatePlace, plane_layers, state_place
from pagedcache._residency import Residency
from pagedcache.backends import Storage
from pagedcache.core import StateBlocks, Step

__all__ = ["States"]


class States(Residency):
    """Base of KVCache: the bytes of states."""

    def read_state(self, layer: int, step: Step) -> NDArray[np.uint8]:
        """The state of each sequence of a step in one layer, as it is before the step's tokens.

        Parameters
        ----------
        layer : int
            Of a state group.
        step : Step
            The open step.

        Returns
        -------
        uint8 [n, state_nbytes]
            A copy; zeros for a sequence that has no token yet.

        Raises
        ------
        ValueError, TypeError
            A layer without a state, a step of another cache, or a cache that is metadata only.
        StepClosed
            The step was committed or abandoned.
        """
        with self._open():
            storage, place, blocks = self._state(layer, step)
            record = self.spec.bytes_per_block // self.spec.planes
            data = np.zeros((len(blocks.state_in), place.records, record), np.uint8)
            for column, layers, records in self._pieces(place):
                ids = blocks.state_in[:, column]
                rows = np.flatnonzero(ids)
                if len(rows):
                    read = self.backend.read_blocks(storage, ids[rows], layers)
                    self.backend.synchronize()  # or the records would be used before they are there
                    data[rows, records] = read
            return np.ascontiguousarray(data.reshape(len(data), -1)[:, : place.nbytes])

    def write_state(self, layer: int, step: Step, data: ArrayLike) -> None:
        """Store the state of each sequence of a step in one layer, as it is after the step's tokens.

        It counts from `commit` on; what the sequence had before stays as it is until then, whoever shares it.

        Parameters
        ----------
        layer : int
            Of a state group.
        step : Step
            The open step.
        data : [n, ...]
            `state_nbytes` bytes for each sequence, of any dtype. A sequence without new tokens keeps its state.

        Raises
        ------
        ValueError, TypeError
            As `read_state`, or data of another size; nothing was stored.
        StepClosed
            The step was committed or abandoned.
        """
        with self._open():
            storage, place, blocks = self._state(layer, step)
            given = np.ascontiguousarray(data)
            n = len(blocks.state_out)
            if given.ndim == 0 or len(given) != n or given.nbytes != n * place.nbytes:
                raise ValueError(
                    f"data is {given.dtype} {given.shape}; it must have {place.nbytes} bytes (state_nbytes) for each "
                    f"of {n} sequences"
                )
            record = self.spec.bytes_per_block // self.spec.planes
            rows = np.flatnonzero(blocks.state_out[:, 0] >= 0)
            padded = np.zeros((len(rows), place.records * record), np.uint8)
            if not len(rows):
                return
            padded[:, : place.nbytes] = given.reshape(n, -1).view(np.uint8)[rows]
            whole = padded.reshape(len(rows), place.records, record)
            for column, layers, records in self._pieces(place):
                piece = np.ascontiguousarray(whole[:, records])
                self.backend.write_blocks(storage, blocks.state_out[rows, column], piece, layers)

    def _state(self, layer: int, step: Step) -> tuple[Storage, StatePlace, StateBlocks]:
        place = state_place(self.spec, layer)
        if not isinstance(step, Step):
            raise TypeError(f"step must be a Step, not {type(step).__name__}")
        if step.owner is not self.sequences:
            raise ValueError("the step is another cache's, or was made from arrays: states belong to an open step")
        if self.storage is None:
            raise ValueError("the cache is metadata only: step.states says which blocks its owner reads and writes")
        return self.storage, place, step.states[place.group]

    def _pieces(self, place: StatePlace) -> Iterator[tuple[int, list[int], slice]]:
        """Column of a group's state blocks, layers of the planes there, and which records of the state they hold."""
        planes = plane_layers(self.spec)
        record, stop = place.first, place.first + place.records
        while record < stop:
            column, plane = divmod(record, len(planes))
            count = min(stop - record, len(planes) - plane)
            yield column, planes[plane : plane + count], slice(record - place.first, record - place.first + count)
            record += count
