"""One forward of the model as one step of the KVCache: opened in its first layer, closed behind its last."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pagedcache.core import Step
from pagedcache.errors import OutOfBlocks
from pagedcache.interop.transformers._rows import Rows
from pagedcache.interop.transformers._twins import States, are_same, leaders_of

__all__ = ["Forward"]

Ints = NDArray[np.int64]


class Forward:
    """The step of a forward under way.

    Parameters
    ----------
    rows : Rows
    states : tensors [rows, heads, tokens, size]
        What the first layer computes: rows of equal states are stored once, as long as later layers agree.
    pads : int64 [rows]
        Pads among the new tokens of each row, which come first.

    Raises
    ------
    OutOfBlocks
        Nothing was changed.
    """

    step: Step

    def __init__(self, rows: Rows, states: States, pads: Ints | None) -> None:
        batch, _, self.count, _ = states[0].shape
        rows.begin(batch)
        self.rows = rows
        self.next_layer = 0
        self.complete = False
        self.pads = np.zeros(batch, np.int64) if pads is None else pads
        self.leaders: Ints | None = None
        if batch > 1 and (self.count > 1 or rows.length == 0) and len(np.unique(rows.alike)) < batch:
            leaders = leaders_of(states, rows.alike, self.pads)
            if (leaders != np.arange(batch)).any():
                self.leaders = leaders
        self._open()

    def _open(self) -> None:
        batch, leaders = len(self.rows.ids), self.leaders
        lead = np.arange(batch) if leaders is None else np.unique(leaders)
        self._lead = lead
        try:
            self.step = self.rows.kv.extend(self.rows.ids[lead], self.count - self.pads[lead])
        except OutOfBlocks as error:
            error.add_note("the cache is as before this forward: crop() or reset() it, or make one with more memory=")
            raise
        self.taken: torch.Tensor | None = None
        self.given: torch.Tensor | None = None
        if leaders is not None or self.pads.any():
            self._map(lead, np.arange(batch) if leaders is None else leaders)

    def _map(self, lead: Ints, leaders: Ints) -> None:
        """Which of the tokens [rows * count] the step has, and which of the step's answers for each of them."""
        token, pads = np.arange(self.count), self.pads[:, None]
        stored = (token >= pads) & np.isin(np.arange(len(leaders)), lead)[:, None]
        order = np.cumsum(stored).reshape(stored.shape) - 1
        given = np.where(token >= pads, order[leaders], 0)  # what comes for a pad is of no account
        self.taken = torch.from_numpy(np.flatnonzero(stored))
        self.given = torch.from_numpy(given.ravel())

    @property
    def lead_places(self) -> Ints:
        """For each row, which sequence of the step has its tokens."""
        return np.searchsorted(self._lead, np.arange(len(self.pads)) if self.leaders is None else self.leaders)

    def enter(self, layer: int, states: States) -> None:
        """The forward has come to a layer; rows that have become different go on apart."""
        if layer != self.next_layer:
            raise RuntimeError(f"layer {layer} of the model came where layer {self.next_layer} was to come")
        if self.leaders is not None and layer and not are_same(states, self.leaders, self.pads):
            self._part()

    def _part(self) -> None:
        """Give each row its own blocks, with a copy of what was stored for its leader in the layers before."""
        kv = self.rows.kv
        spans = np.split(np.arange(self.step.num_tokens), self.step.qo_indptr[1:-1])
        source = np.concatenate(
            [spans[index] for index in self.lead_places]
        )  # tokens of the old step, in the new one's order
        saved = [(group, pool, pool[slots[source]]) for group, slots, pools in self._pools() for pool in pools]
        kv.abandon(self.step)
        self.leaders = None
        self._open()
        for group, pool, values in saved:
            pool[self.step.groups[group].slots] = values

    def _pools(self) -> Any:
        """(group, slots, arrays [slots, ...]) of each layer group: K and V, and their scales."""
        kv = self.rows.kv
        storage: Any = kv.storage
        for layer in range(kv.spec.layers):
            group = kv.spec.locate(layer)[0]
            arrays = [*storage.view(layer), *(storage.scales(layer) or ())]
            yield group, self.step.groups[group].slots.copy(), [a.reshape(-1, *a.shape[2:]) for a in arrays]

    def leave(self, layers: int) -> bool:
        """The layer has stored what it had to; whether it was the last one."""
        self.next_layer += 1
        self.complete = self.next_layer == layers
        return self.complete

    def close(self, dropped: int = 0) -> None:
        """Commit, without the last tokens of each row; or, if layers are missing, undo the forward."""
        if not self.complete:
            self.rows.kv.abandon(self.step)
            return
        accepted = None
        if dropped:
            kept = np.maximum(self.count - self.pads[self._lead] - dropped, 0)
            accepted = [np.arange(number) for number in kept]
        self.rows.kv.commit(self.step, None, accepted)
        count = self.count - dropped
        self.rows.advanced(count, np.minimum(self.pads, count), self.leaders)
