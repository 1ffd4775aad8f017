"""Whole blocks and single slots: copied within a pool, read from it and written to it as records."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.cuda import _kernels
from pagedcache.backends.cuda._launcher import Array, Launcher
from pagedcache.backends.cuda._params import MOVE
from pagedcache.backends.host import moves

__all__ = ["copy_blocks", "copy_slots", "read_blocks", "write_blocks"]

Int64 = npt.NDArray[np.int64]
Place = tuple[list[int], Int64, int, int]  # addresses of arrays; offsets of items, and of tokens and heads, in bytes


def copy_blocks(launcher: Launcher, storage: Any, pairs: Any) -> None:
    """Copy blocks, pairs int32 [m, 2] (src, dst), in every plane; none is both src and dst."""
    src, dst = moves.checked_pairs(storage, pairs)
    for arrays in zip(*launcher.planes(storage), strict=True):  # one kind of array of all planes
        addresses, block = [launcher.address(array) for array in arrays], _block_bytes(arrays[0])
        _move(launcher, (addresses, src * block, 0, 0), (addresses, dst * block, 0, 0), 1, 1, block)


def copy_slots(launcher: Launcher, storage: Any, src: Any, dst: Any) -> None:
    """Copy int64 slots in every plane; every source is read before a destination is written."""
    sources, targets = moves.checked_slots(storage, src, dst)
    heads = storage.spec.kv_heads
    for arrays in zip(*launcher.planes(storage), strict=True):
        slot, head, row = _strides(storage, arrays[0])
        block = _block_bytes(arrays[0])
        between = launcher.empty((len(arrays), sources.size, heads * row), np.uint8)
        pool = [launcher.address(array) for array in arrays]
        staged = [launcher.address(between) + i * sources.size * heads * row for i in range(len(arrays))]
        compact = (staged, np.arange(sources.size) * (heads * row), 0, row)
        size = storage.spec.block_size
        there, here = (at // size * block + at % size * slot for at in (sources, targets))
        _move(launcher, (pool, there, 0, head), compact, 1, heads, row)
        _move(launcher, compact, (pool, here, 0, head), 1, heads, row)


def read_blocks(
    launcher: Launcher, storage: Any, ids: Any, layers: Sequence[int] | None, into: Any
) -> npt.NDArray[np.uint8]:
    """Return blocks as records of the host, uint8 [ids, layers, record]: NHD, whatever the layout."""
    wanted, numbers, records = moves.checked_records(storage, ids, layers, into, writing=False)
    between = launcher.empty(records.shape, np.uint8)
    for pool, compact, heads, row in _records(launcher, storage, wanted, numbers, between):
        _move(launcher, pool, compact, storage.spec.block_size, heads, row)
    records[...] = launcher.download(between)
    return records


def write_blocks(launcher: Launcher, storage: Any, ids: Any, data: Any, layers: Sequence[int] | None) -> None:
    """Store records of the host."""
    targets, numbers, records = moves.checked_records(storage, ids, layers, data, writing=True)
    between = launcher.upload(np.ascontiguousarray(records))
    for pool, compact, heads, row in _records(launcher, storage, targets, numbers, between):
        _move(launcher, compact, pool, storage.spec.block_size, heads, row)


def _records(
    launcher: Launcher, storage: Any, ids: Int64, layers: list[int], between: Array
) -> list[tuple[Place, Place, int, int]]:
    """Return, for each kind of array, where its rows are in the pool and in records; and heads and bytes of a row."""
    every, spec = launcher.planes(storage), storage.spec
    planes = [every[spec.locate(layer)[1]] for layer in layers]
    found = []
    begin = 0
    record = between.shape[2]
    for arrays in zip(*planes, strict=True):
        slot, head, row = _strides(storage, arrays[0])
        pool = ([launcher.address(array) for array in arrays], ids * _block_bytes(arrays[0]), slot, head)
        places = [launcher.address(between) + number * record + begin for number in range(len(layers))]
        compact = (places, np.arange(ids.size) * (len(layers) * record), spec.kv_heads * row, row)
        found.append((pool, compact, spec.kv_heads, row))
        begin += _block_bytes(arrays[0])
    return found


def _move(launcher: Launcher, source: Place, destination: Place, tokens: int, heads: int, row: int) -> None:
    """Move rows of bytes: of every array, item, token and head."""
    arrays, count = len(source[0]), source[1].size
    if not arrays or not count:
        return
    params = np.zeros((), MOVE)
    keep = []
    for name, one, values in (
        ("sources", "source", source),
        ("destinations", "destination", destination),
    ):
        addresses, offsets, token, head = values
        keep.append(launcher.upload(np.array(addresses, np.uint64)))
        params[name] = launcher.address(keep[-1])
        keep.append(launcher.upload(np.ascontiguousarray(offsets, np.int64)))
        params[one] = launcher.address(keep[-1])
        params[f"{one}_token"], params[f"{one}_head"] = token, head
    params["count"], params["arrays"], params["tokens"] = count, arrays, tokens
    params["heads"], params["bytes"] = heads, row
    common = math.gcd(row, *source[0], *destination[0], *source[2:], *destination[2:])
    common = math.gcd(common, int(np.gcd.reduce(source[1])), int(np.gcd.reduce(destination[1])))
    unit = next(unit for unit in (16, 4, 1) if common % unit == 0)
    launcher.launch(_kernels.move(unit), min(arrays * count * tokens, 32 * launcher.multiprocessors), params)


def _block_bytes(array: Array) -> int:
    return math.prod(map(int, array.shape[1:])) * int(array.dtype.itemsize)


def _strides(storage: Any, array: Array) -> tuple[int, int, int]:
    """Return bytes from slot to slot of a block, from head to head, and of a head."""
    row = (array.shape[3] if len(array.shape) == 4 else 1) * int(array.dtype.itemsize)
    spec = storage.spec
    return (spec.kv_heads * row, row, row) if spec.layout == "NHD" else (row, spec.block_size * row, row)
