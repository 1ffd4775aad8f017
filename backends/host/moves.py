"""Whole blocks and single slots: copied within a pool, read from it and written to it as records."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.host.arguments import block_ids, indices, slots
from pagedcache.backends.host.storage import HostStorage

__all__ = [
    "checked_pairs",
    "checked_records",
    "checked_slots",
    "copy_blocks",
    "copy_slots",
    "read_blocks",
    "write_blocks",
]

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]


def checked_pairs(storage: HostStorage, pairs: Any) -> tuple[Int64, Int64]:
    """Return the blocks that copy_blocks copies, and those that it copies to."""
    array = indices("pairs", pairs if len(pairs) else np.empty((0, 2), np.int64), ndim=2)
    if array.shape[1] != 2:
        raise ValueError(f"pairs has shape {array.shape}; it must be [m, 2], source and destination")
    src = block_ids("sources", array[:, 0], storage.num_blocks, writing=False)
    dst = block_ids("destinations", array[:, 1], storage.num_blocks, writing=True)
    both = np.intersect1d(src, dst)
    if both.size:
        raise ValueError(f"block {both[0]} is both a source and a destination in pairs")
    return src, dst


def copy_blocks(storage: HostStorage, pairs: Any) -> None:
    """Copy blocks in every plane."""
    src, dst = checked_pairs(storage, pairs)
    for plane in storage.planes:
        for kind in plane:
            kind[dst] = kind[src]


def checked_slots(storage: HostStorage, src: Any, dst: Any) -> tuple[Int64, Int64]:
    """Return the slots that copy_slots copies, and those that it copies to."""
    size = storage.spec.block_size
    sources = slots("src", src, storage.num_blocks, size, distinct=False)
    targets = slots("dst", dst, storage.num_blocks, size, distinct=True)
    if sources.shape != targets.shape:
        raise ValueError(f"src has {sources.size} slots and dst has {targets.size}; they must be as many")
    return sources, targets


def copy_slots(storage: HostStorage, src: Any, dst: Any) -> None:
    """Copy slots in every plane, as if all were read before any is written."""
    layout = storage.spec.layout
    sources, targets = checked_slots(storage, src, dst)
    for plane in storage.planes:
        for kind in plane:
            put_slots(kind, layout, targets, take_slots(kind, layout, sources))


def take_slots(array: npt.NDArray[Any], layout: str, at: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return a copy of the tokens at some slots, [slots, kv_heads, ...]."""
    if layout == "NHD":
        return array.reshape(-1, *array.shape[2:])[at]
    block, offset = np.divmod(at, array.shape[2])
    return array[block, :, offset]


def put_slots(array: npt.NDArray[Any], layout: str, at: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
    """Write tokens [slots, kv_heads, ...] at some slots."""
    if layout == "NHD":
        array.reshape(-1, *array.shape[2:])[at] = values
    else:
        block, offset = np.divmod(at, array.shape[2])
        array[block, :, offset] = values


def checked_records(
    storage: HostStorage, ids: Any, layers: Sequence[int] | None, records: Any, *, writing: bool
) -> tuple[Int64, list[int], Bytes]:
    """Return the blocks, the layers and the records of read_blocks or, with `writing`, of write_blocks."""
    blocks = block_ids("ids", ids, storage.num_blocks, writing=writing)
    numbers = _layers(storage, layers)
    if writing and records is None:
        raise TypeError("data is None; it must be what read_blocks returned")
    return blocks, numbers, _records("data" if writing else "into", records, storage, blocks.size, numbers, writing)


def read_blocks(storage: HostStorage, ids: Any, layers: Sequence[int] | None, into: Any) -> Bytes:
    """Return blocks as records, uint8 [ids, layers, record]."""
    wanted, numbers, records = checked_records(storage, ids, layers, into, writing=False)
    for place, layer in enumerate(numbers):
        begin = 0
        for kind in _kinds(storage, layer):
            width = kind[0].nbytes
            blocks = np.ascontiguousarray(_nhd(kind[wanted], storage))
            records[:, place, begin : begin + width] = blocks.view(np.uint8).reshape(wanted.size, width)
            begin += width
    return records


def write_blocks(storage: HostStorage, ids: Any, data: Any, layers: Sequence[int] | None) -> None:
    """Write records that read_blocks returned."""
    targets, numbers, records = checked_records(storage, ids, layers, data, writing=True)
    for place, layer in enumerate(numbers):
        begin = 0
        for kind in _kinds(storage, layer):
            shape = _nhd(kind[:0], storage).shape[1:]
            width = kind[0].nbytes
            piece = np.ascontiguousarray(records[:, place, begin : begin + width])
            kind[targets] = _nhd(piece.view(kind.dtype).reshape(-1, *shape), storage)
            begin += width


def _kinds(storage: HostStorage, layer: int) -> tuple[npt.NDArray[Any], ...]:
    return storage.planes[storage.spec.locate(layer)[1]]


def _nhd(blocks: npt.NDArray[Any], storage: HostStorage) -> npt.NDArray[Any]:
    """Turn blocks of the storage's layout into NHD, or NHD into the storage's layout."""
    return blocks if storage.spec.layout == "NHD" else blocks.swapaxes(1, 2)


def _layers(storage: HostStorage, layers: Sequence[int] | None) -> list[int]:
    if layers is None:
        return list(storage.spec.kv_layers)
    numbers: list[int] = indices("layers", layers).tolist()
    for number in numbers:
        storage.spec.locate(number)
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"layers names a layer twice: {numbers}")
    return numbers


def _records(name: str, array: Any, storage: HostStorage, blocks: int, layers: list[int], writing: bool) -> Bytes:
    sizes = {storage.spec.record_nbytes(layer) for layer in layers} or {0}
    shape = (blocks, len(layers), sizes.pop())
    if array is None:
        return np.empty(shape, np.uint8)
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.shape != shape:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name} is {found}; it must be an array of uint8 {shape}")
    if not writing and not array.flags.writeable:
        raise ValueError(f"{name} is read-only")
    return array
