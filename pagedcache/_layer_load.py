"""Loads that attention overtakes: layer after layer comes from tiers while earlier layers are computed.

A load is a step whose K/V come from elsewhere. It is opened as any other, for the tokens that the tiers have; the step
behind it, for the rest of the prompt, attends to a layer as soon as that layer is there. Until the load is committed
nothing of it can be found, and abandoning both steps undoes all of it.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagedcache._pool_records import PoolRecords
from pagedcache._tier_bugs import tell_bug
from pagedcache.core import Step
from pagedcache.errors import LoadFailed
from pagedcache.tiers import Load, Places, Tier

if TYPE_CHECKING:
    from pagedcache._tier_set import TierSet

__all__ = ["LayerLoad", "Part", "complete", "held_ready"]

PIECE_BYTES = 64 * 1024  # of a block that are read at a time, in whole layers: small enough that little waits for it


class Part(NamedTuple):
    """Blocks of one row that one tier holds ready."""

    tier: Tier
    load: Load
    row: int  # of the load's step
    logical: int  # which block of the row is the first


def held_ready(tiers: "TierSet", row: int, digests: Sequence[bytes], first: int) -> list[Part]:
    """Have the tiers hold what they have of a prompt's blocks from `first` on, without a gap."""
    parts: list[Part] = []
    tier, search = tiers.tiers[0], tiers.search(digests[first:])
    try:
        while found := search.next():
            tier, stop = found
            part = _held(tier, digests[first + search.at : first + stop], row, first + search.at)
            if part is not None:
                parts.append(part)
                search.at += part.load.count
            if search.at < stop:  # another tier may have the rest
                search.pass_over(tier)
    except Exception as error:  # what is held so far will do
        tell_bug(tier, error)
    return parts


def _held(tier: Tier, digests: Sequence[bytes], row: int, logical: int) -> Part | None:
    """What the tier holds ready; None where it has gone since."""
    try:
        load = tier.prepare_load(digests)
        if load.count:
            return Part(tier, load, row, logical)
        tier.complete_load(load)
    except Exception as error:  # a tier that fails does not have it
        tell_bug(tier, error)
    return None


def complete(parts: Sequence[Part]) -> None:
    """The tiers need hold these ready no more."""
    for part in parts:
        try:
            part.tier.complete_load(part.load)
        except Exception as error:  # the others have to be let go as well
            tell_bug(part.tier, error)


class LayerLoad:
    """A load under way, from `KVCache.begin_load`.

    Attributes
    ----------
    step : Step
        The load's own; `KVCache.commit` of the step behind it commits it first.
    counts : int32 [n]
        Tokens that are loaded, for each of the sequences asked about.
    """

    def __init__(
        self, step: Step, counts: NDArray[np.int32], tokens: NDArray[np.int32], parts: list[Part], layers: int
    ) -> None:
        self.step, self.counts, self.tokens = step, counts, tokens
        self._parts, self._layers = parts, layers
        self._blocks = [
            step.block_tables[part.row, part.logical : part.logical + part.load.count].astype(np.int64)
            for part in parts
        ]  # fmt: skip
        self._progress = threading.Condition()
        self._ready = 0  # layers that are there
        self._ended = False
        self._cancelled = False

    @property
    def is_there(self) -> bool:
        """Whether all layers are."""
        return self._ready == self._layers

    def await_layer(self, layer: int) -> None:
        """Wait until a layer is there; LoadFailed if it will not be."""
        if self._ready > layer:
            return
        with self._progress:
            self._progress.wait_for(lambda: self._ready > layer or self._ended)
        if self._ready <= layer:
            raise LoadFailed(
                f"layer {layer} could not be loaded, or not rightly: abandon the step, cancel the load and compute "
                "these tokens"
            )

    def stop(self) -> None:
        """Load no more; returns when nothing is written into the step's blocks any more."""
        self._cancelled = True
        with self._progress:
            self._progress.wait_for(lambda: self._ended)

    def run(self, records: PoolRecords, record_nbytes: int, lock: Callable[[], Any]) -> None:
        """On a thread of the tiers: fill the blocks, a few layers at a time."""
        try:
            at_once = max(1, PIECE_BYTES // record_nbytes)
            fill = self._filler(records, lock)
            for first in range(0, self._layers, at_once):
                layers = range(first, min(first + at_once, self._layers))
                if self._cancelled or not fill(layers):
                    return
                with self._progress:
                    self._ready = layers.stop
                    self._progress.notify_all()
        except Exception as error:  # a tier that fails does not have it
            tell_bug(self._parts[0].tier, error)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """The tiers need hold nothing ready any more; whoever waits is told."""
        try:
            complete(self._parts)
        finally:
            with self._progress:
                self._ended = True
                self._progress.notify_all()

    def lose(self) -> None:
        """In a forked child, where nobody fills it."""
        self._progress, self._ended = threading.Condition(), True

    def _filler(self, records: PoolRecords, lock: Callable[[], Any]) -> Callable[[range], bool]:
        """Return what fills some layers and says whether all came."""
        if records.are_direct:
            pool = [records.places(blocks) for blocks in self._blocks]
            return lambda layers: self._read(layers, pool)
        beside = [records.empty(len(blocks)) for blocks in self._blocks]
        places = [Places.of_records(part) for part in beside]

        def fill(layers: range) -> bool:
            if not self._read(layers, places):
                return False
            with lock():
                for blocks, part in zip(self._blocks, beside, strict=True):
                    records.write(blocks, np.ascontiguousarray(part[:, layers.start : layers.stop]), layers)
            return True

        return fill

    def _read(self, layers: range, places: list[Places]) -> bool:
        parts = zip(self._parts, places, strict=True)
        return all(part.tier.load(part.load, layers, into) == part.load.count for part, into in parts)
