"""Which keys a query sees.

The keys of a sequence are a row. Its coordinates, which its block table maps to memory::

    0 ......... pad ................. start ............. new .......... end
    |  padding   |  sinks  |  released  |  older tokens    |  new tokens  |
                             table: 0

The query at coordinate c and position p sees key k if all of these hold:

- ``pad <= k``;
- k is a sink: its position is below ``sink_tokens``; or k is held and within the window:
  ``start <= k``, and its position is above ``p - window``;
- k does not come later: ``k <= c``, or the tree mask says so where both are new tokens.

Positions are coordinates less the pad, except those of new tokens, which the step gives: the
tokens of a speculation tree stand beside each other.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = ["Sight"]

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sight:
    """Queries over one block table, and the keys among [begin, end) that each of them sees."""

    table: Int64  # [width], block of each logical block
    pad: int  # coordinate of position 0
    start: int  # first coordinate that is held, after the sinks
    new: int  # coordinate of the first new token
    begin: int  # keys before this coordinate are not looked at
    end: int  # nor from this one on
    places: Int64  # [queries], their coordinates: rising, or all behind the keys
    positions: Int64  # [queries]
    new_positions: Int64  # [new tokens], of the keys from `new` on
    tree: Bools | None = None  # [queries, new tokens], which of these each query sees; None: causal
    window: int | None = None
    sink_tokens: int = 0

    def panel(self, chosen: slice) -> "Sight":
        """Return the same for some of the queries."""
        if len(self.places[chosen]) == len(self.places):
            return self
        tree = None if self.tree is None else self.tree[chosen]
        return replace(self, places=self.places[chosen], positions=self.positions[chosen], tree=tree)

    @cached_property
    def is_plain(self) -> bool:
        """Whether the positions of the new tokens rise with their coordinates, one by one."""
        count, first = len(self.new_positions), self.new - self.pad
        return self.tree is None and bool((self.new_positions == np.arange(first, first + count)).all())

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Where the keys are that any of the queries may see: ascending, without overlap."""
        if not len(self.places):
            return []
        low, high = max(self.start, self.pad), self.end
        if self.tree is None:
            high = min(high, int(self.places[-1]) + 1)
        if self.window is not None:
            low = max(low, self.pad + int(self.positions.min()) - self.window + 1)
        if low > self.new and not self.is_plain:
            low = max(self.pad, self.new)
        spans = [(self.pad, min(self.pad + self.sink_tokens, low, high)), (low, high)]
        cut = [(max(first, self.begin), min(last, self.end)) for first, last in spans]
        return [(first, last) for first, last in cut if first < last]

    @property
    def keys(self) -> Int64:
        """Coordinates of the keys in `spans`."""
        return np.concatenate([np.arange(0), *(np.arange(first, last) for first, last in self.spans)])

    def positions_of(self, keys: Int64) -> Int64:
        """Return the positions of keys, which are given by their coordinates."""
        positions = keys - self.pad
        if not self.is_plain:
            is_new = keys >= self.new
            positions[is_new] = self.new_positions[keys[is_new] - self.new]
        return positions

    def distances(self, keys: Int64) -> npt.NDArray[np.float32]:
        """Return how far each key stands before (below 0) or after each query, [queries, keys]."""
        return (self.positions_of(keys) - self.positions[:, None]).astype(np.float32)

    def seen(self, keys: Int64) -> Bools | None:
        """Return which of some keys from `spans` each query sees, [queries, keys]; None: all of them."""
        if self._sees_all_until(int(keys[-1])):
            return None
        positions = self.positions_of(keys)
        near = keys >= self.start
        if self.window is not None:
            near = near & (positions > self.positions[:, None] - self.window)
        earlier = keys <= self.places[:, None]
        if self.tree is not None:
            is_new = keys >= self.new
            earlier[:, is_new] = self.tree[:, keys[is_new] - self.new]
        return earlier & (near | (positions < self.sink_tokens))

    def _sees_all_until(self, key: int) -> bool:
        """Whether nothing is to be masked up to this key; so it is with one query, or without a window."""
        in_order = key < self.new or (self.tree is None and key <= int(self.places[0]))
        alike = self.window is None and self.start <= self.new
        return in_order and (alike or (len(self.places) == 1 and self.is_plain))
