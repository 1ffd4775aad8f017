"""What a tier is: a slower place where blocks live under portable names.

A tier knows keys and bytes: no sequence, no pool, no token. Its keys are digests (`pagedcache.digests`), 32 bytes
that say all that the content depends on, so that equal keys hold equal bytes. Who holds the cache calls it, from
worker threads too: a tier serialises what it must.

Loads and stores are in three parts, so that nothing is visible half done, and nothing goes away while it is read::

    load = tier.prepare_load(keys)             # the leading blocks that are there, held until complete_load
    right = tier.load(load, layers, places)    # layer by layer, as often as it takes
    tier.complete_load(load)

    store = tier.prepare_store(keys)           # which of them the tier wants; room for those
    tier.store(store, places)
    tier.complete_store(store)                 # durable, and only now visible; or abort_store

A load gives bytes only after their checksums were found right. What is not right counts as not there, and is
forgotten. Errors of the medium (OSError, TierError) may come from any call; whoever calls takes them for a miss. Any
other exception is a bug of the tier: a RuntimeWarning tells of it, and it counts as a miss too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pagedcache.tiers.block_format import BlockFormat

__all__ = ["Load", "Places", "Store", "Tier", "TierStats"]

Bytes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Places:
    """Where in memory records are, or go.

    Attributes
    ----------
    layers : sequence of (uint8 [rows, width], ...)
        Of each layer the arrays that a record's pieces are rows of, in the order of the record.
    rows : int64 [blocks]
        Which rows.
    """

    layers: Sequence[tuple[Bytes, ...]]
    rows: NDArray[np.int64]

    @classmethod
    def of_records(cls, records: Bytes) -> "Places":
        """Return the places of an array of records, uint8 [blocks, layers, record]."""
        return cls([(records[:, layer],) for layer in range(records.shape[1])], np.arange(len(records)))

    def __getitem__(self, blocks: "slice | NDArray[np.int64]") -> "Places":
        """Return the places of some of the blocks."""
        return Places(self.layers, self.rows[blocks])


@dataclass(eq=False, slots=True)
class Load:
    """Blocks that a tier holds ready until complete_load: of the keys asked for, the first `count`."""

    keys: Sequence[bytes]
    count: int
    state: Any = None  # the tier's own


@dataclass(eq=False, slots=True)
class Store:
    """Blocks that a tier has made room for: those `wanted` of the keys offered, by number."""

    keys: Sequence[bytes]
    wanted: NDArray[np.int64]
    state: Any = None  # the tier's own


@dataclass(slots=True)
class TierStats:
    """Counters of one tier since it was opened, and its size."""

    blocks: int = 0  # visible now
    nbytes: int = 0  # that these take
    capacity: int = 0  # bytes at most
    hits: int = 0  # blocks loaded, verified
    misses: int = 0  # blocks asked for that were not there
    stored: int = 0  # blocks that became visible
    evicted: int = 0  # blocks that gave way
    corrupt: int = 0  # blocks that were not what they should be, and were forgotten
    errors: int = 0  # calls that the medium failed
    more: dict[str, int] = field(default_factory=dict)  # what only this kind of tier counts


class Tier(Protocol):
    """A place for blocks."""

    name: str  # for messages and statistics: "host", "disk", ...
    writes: Literal["back", "through"]  # whether it is offered blocks as they are evicted, or as they are published

    # fmt: off
    def bind(self, form: BlockFormat) -> None:
        """From here on blocks are of this format. ForeignFormat where the tier holds others; once for each cache."""

    def longest_prefix(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are there."""

    def prepare_load(self, keys: Sequence[bytes]) -> Load:
        """Hold the leading blocks that are there."""

    def load(self, load: Load, layers: range, places: Places) -> int:
        """Fill ``places.layers[i]`` for i in `layers`; of the load's blocks, how many leading ones are right."""

    def complete_load(self, load: Load) -> None:
        """Let the blocks go; once for each load, whatever came of it. They count as used."""

    def prepare_store(self, keys: Sequence[bytes]) -> Store:
        """Make room for those that are not there; fewer where there is none."""

    def store(self, store: Store, places: Places) -> None:
        """Take the bytes of the wanted blocks, of which `places` has just these, in order."""

    def complete_store(self, store: Store) -> int:
        """Make them visible, as durably as the tier promises; how many. If it raises, none is, and the room is free."""

    def abort_store(self, store: Store) -> None:
        """Give the room back, instead of complete_store."""

    def touch(self, keys: Sequence[bytes]) -> None:
        """Count these as used, where they are there."""

    def pin(self, keys: Sequence[bytes], name: str) -> int:
        """Keep these from eviction until unpin(name), adding to the name; how many are there."""

    def unpin(self, name: str) -> int:
        """Undo pin; how many it held."""

    def remove(self, keys: Sequence[bytes]) -> int:
        """Forget these; how many were there. Pins do not keep them."""

    def stats(self) -> TierStats:
        """A snapshot."""

    def close(self) -> None:
        """Finish what is begun and give everything back; closing twice is harmless."""
    # fmt: on
