"""What the disk tier keeps in a Load and in a Store, and what it takes for places."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.protocol import Places

__all__ = ["Reading", "Writing", "require_fit"]


@dataclass(eq=False, slots=True)
class Reading:
    """What a load holds."""

    slots: NDArray[np.int64]
    held: list[int]
    crcs: NDArray[np.uint32] = field(default_factory=lambda: np.empty((0, 0), np.uint32))  # [blocks, layers]
    right: int = 0  # leading blocks that were right so far
    read: bool = False  # some layer was asked for


@dataclass(eq=False, slots=True)
class Writing:
    """What a store holds."""

    slots: NDArray[np.int64]
    digests: list[bytes]
    written: bool = False


def require_fit(form: BlockFormat, places: Places, layers: range, count: int) -> None:
    """Refuse places that are not those of `count` blocks: no load could take what a store would write, or the reverse.

    Raises
    ------
    ValueError
    """
    if len(places.rows) < count:
        raise ValueError(f"places of {len(places.rows)} blocks, for {count}")
    if len(places.layers) != form.layers or (layers and not 0 <= min(layers) <= max(layers) < form.layers):
        raise ValueError(f"places of {len(places.layers)} layers and layers {layers}; blocks here have {form.layers}")
    for layer in layers:
        width = sum(array.shape[1] for array in places.layers[layer])
        if width != form.record_nbytes:
            raise ValueError(f"places of layer {layer} are {width} bytes wide; a record is {form.record_nbytes}")
