"""What the disk tier keeps in a Load and in a Store, and what it takes for places."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.protocol import Places

__all__ = ["Reading", "Writing", "require_fit"]


@dataclass(eq=False, slots=True)
class Reading:
    """What a load holds."""

    slots: NDArray[np.int64]
    crcs: NDArray[np.uint32]  # [blocks, layers]
    held: list[int]
    right: int  # leading blocks that were right so far
    read: bool = False  # some layer was asked for


@dataclass(eq=False, slots=True)
class Writing:
    """What a store holds."""

    slots: NDArray[np.int64]
    digests: list[bytes]
    written: bool = False


def require_fit(form: BlockFormat, places: Places, count: int) -> None:
    """Refuse places that are not those of `count` blocks of this format: a store would write what no load can take."""
    if len(places.rows) != count or len(places.layers) != form.layers:
        raise ValueError(
            f"places of {len(places.rows)} blocks and {len(places.layers)} layers; the store wants {count} blocks of "
            f"{form.layers}"
        )
    for layer, arrays in enumerate(places.layers):
        width = sum(array.shape[1] for array in arrays)
        if width != form.record_nbytes:
            raise ValueError(f"places of layer {layer} are {width} bytes wide; a record is {form.record_nbytes}")
