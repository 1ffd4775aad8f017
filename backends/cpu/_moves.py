"""Whole blocks and single slots at the speed of memory: what backends/host/moves.py does, in C.

Copied in one piece is what lies in a row: a block as it is stored; a token with all its heads (NHD) or one
head of it (HND).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.cpu._native import copy_rows
from pagedcache.backends.cpu._storage import CpuStorage
from pagedcache.backends.host import moves
from pagedcache.backends.host.memory import HUGE_PAGE, zeros

__all__ = ["copy_blocks", "copy_slots", "read_blocks", "write_blocks"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]


def copy_blocks(storage: CpuStorage, pairs: Any, threads: int) -> None:
    """Copy blocks in every plane."""
    src, dst = (np.ascontiguousarray(ids) for ids in moves.checked_pairs(storage, pairs))
    for plane in storage.planes:
        for kind in plane:
            copy_rows(kind, src, kind, dst, kind[0].nbytes, threads)


def copy_slots(storage: CpuStorage, src: Any, dst: Any, threads: int) -> None:
    """Copy slots in every plane, as if all were read before any is written."""
    sources, targets = moves.checked_slots(storage, src, dst)
    apart = not np.isin(targets, sources).any()
    taken, put = _rows_of_slots(storage, sources), _rows_of_slots(storage, targets)
    for plane in storage.planes:
        for kind in plane:
            rows = _rows(storage, kind)
            width = rows[0].nbytes
            if apart:
                copy_rows(rows, taken, rows, put, width, threads)
            else:
                between = np.empty((taken.size, width), np.uint8)
                copy_rows(rows, taken, between, None, width, threads)
                copy_rows(between, None, rows, put, width, threads)


def read_blocks(storage: CpuStorage, ids: Any, layers: Sequence[int] | None, into: Any, threads: int) -> Bytes:
    """Return blocks as records, uint8 [ids, layers, record]."""
    blocks, numbers, records = moves.checked_records(storage, ids, layers, into, writing=False)
    if into is None and records.nbytes >= HUGE_PAGE:
        # Huge pages cost fewer faults; and large arrays of NumPy begin 16 bytes behind a page, where copies from
        # the pool run several times as slow: each load waits for a store of the same lower 12 bits of address.
        records = zeros(records.shape, records.dtype)
    compact = records if _is_plain(storage, records) else np.empty(records.shape, np.uint8)
    for rows, taken, place, put in _pieces(storage, blocks, numbers, compact):
        copy_rows(rows, taken, place, put, rows[0].nbytes, threads)
    if compact is not records:
        records[...] = compact
    return records


def write_blocks(storage: CpuStorage, ids: Any, data: Any, layers: Sequence[int] | None, threads: int) -> None:
    """Write records that read_blocks returned."""
    blocks, numbers, records = moves.checked_records(storage, ids, layers, data, writing=True)
    compact = records if _is_plain(storage, records) else records.copy()
    for rows, put, place, taken in _pieces(storage, blocks, numbers, compact):
        copy_rows(place, taken, rows, put, rows[0].nbytes, threads)


def _rows(storage: CpuStorage, kind: Array) -> Array:
    """An array of the pool as rows of what lies together of one token."""
    shape = kind.shape if storage.spec.layout == "NHD" else (len(kind) * kind.shape[1], *kind.shape[2:])
    return kind.reshape(shape[0] * shape[1], -1)


def _rows_of_slots(storage: CpuStorage, slots: Int64) -> Int64:
    """Which rows make up the tokens at some slots."""
    if storage.spec.layout == "NHD":
        return np.ascontiguousarray(slots)
    block, offset = np.divmod(slots, storage.spec.block_size)
    heads = np.arange(storage.spec.kv_heads)
    return ((block[:, None] * heads.size + heads) * storage.spec.block_size + offset[:, None]).ravel()


def _pieces(
    storage: CpuStorage, blocks: Int64, layers: list[int], records: Bytes
) -> Iterator[tuple[Array, Int64, Bytes, Int64]]:
    """Per layer and kind: an array as rows, which of them make up the blocks in the order of records, and the
    memory of the records from that layer and kind on, with the place of each row in it."""
    spec, flat, record = storage.spec, records.reshape(-1), records.shape[2]
    whole = spec.layout == "NHD"
    count = 1 if whole else spec.kv_heads * spec.block_size
    order = np.arange(count) if whole else np.arange(count).reshape(spec.kv_heads, spec.block_size).T.ravel()
    in_pool = (blocks[:, None] * count + order).ravel()
    firsts = np.arange(len(blocks))[:, None] * (len(layers) * record)
    places: dict[int, Int64] = {}  # by the width of a row
    for number, layer in enumerate(layers):
        begin = number * record
        for kind in storage.planes[spec.locate(layer)[1]]:
            rows = kind.reshape(len(kind), -1) if whole else _rows(storage, kind)
            width = rows[0].nbytes
            if width not in places:
                places[width] = (firsts + np.arange(count) * width).ravel()
            yield rows, in_pool, flat[begin:], places[width]
            begin += count * width


def _is_plain(storage: CpuStorage, records: Bytes) -> bool:
    """Whether C can go over them: compact, and no part of the pool."""
    inside = any(np.may_share_memory(records, kind) for plane in storage.planes for kind in plane)
    return records.flags.c_contiguous and not inside
