"""What tiers on servers do with places: check them, check what arrived there, copy."""

from collections.abc import Sequence
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pagedcache.tiers._checked import checksums
from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.protocol import Bytes, Places

__all__ = ["gather", "leading_right", "require_places", "spread"]


def require_places(form: BlockFormat, places: Places, layers: range, count: int, way: Literal["into", "from"]) -> None:
    """Raise ValueError unless there is a place for each record: once bytes are under way it is too late."""
    if layers and not (layers.step == 1 and 0 <= layers.start < layers.stop <= form.layers <= len(places.layers)):
        raise ValueError(f"{layers} of the {len(places.layers)} layers of places; a block has {form.layers}")
    rows = places.rows[:count]
    if len(rows) < count:
        raise ValueError(f"{len(rows)} rows for {count} blocks")
    if not count:
        return  # NumPy's empty arrays have strides of any kind
    for arrays in (places.layers[layer] for layer in layers):
        widths = [array.shape[1] for array in arrays]
        if sum(widths) != form.record_nbytes:
            raise ValueError(f"pieces of {widths} bytes, together {sum(widths)}; a record has {form.record_nbytes}")
        for array in arrays:
            if not 0 <= rows.min() <= rows.max() < len(array):
                raise ValueError(f"rows {rows.min()} to {rows.max()}; an array has {len(array)}")
            if array.dtype != np.uint8 or (array.shape[1] > 1 and array.strides[1] != 1):
                raise ValueError(f"an array of {array.dtype} with strides {array.strides}; rows must be compact bytes")
            if way == "into" and not array.flags.writeable:
                raise ValueError("an array to read into is read-only")


def leading_right(places: Places, layers: Sequence[int], crcs: NDArray[np.uint32]) -> int:
    """How many leading blocks have these checksums, uint32 [blocks, layers of the model], in these layers."""
    good = np.ones(len(crcs), np.bool_)
    for layer in layers:
        good &= checksums(places.layers[layer], places.rows) == crcs[:, layer]
    return len(good) if good.all() else int(good.argmin())


def gather(places: Places, records: Bytes) -> None:
    """Copy blocks to `records`, uint8 [blocks, bytes of all layers]."""
    at = 0
    for array in chain.from_iterable(places.layers):
        records[:, at : at + array.shape[1]] = array[places.rows]
        at += array.shape[1]


def spread(records: Bytes, places: Places, layers: Sequence[int]) -> None:
    """Copy `records`, uint8 [blocks, bytes of these layers], to their places."""
    at = 0
    for array in chain.from_iterable(places.layers[layer] for layer in layers):
        array[places.rows] = records[:, at : at + array.shape[1]]
        at += array.shape[1]
