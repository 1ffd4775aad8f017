"""What comes in from outside, checked before anything is read or written by it."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedcache.backends._step_like import StepLike

__all__ = ["Rows", "block_ids", "indices", "output", "step_rows"]


class Rows(NamedTuple):
    """The sequences of a step: plain ints, one per sequence, and the tables."""

    begins: list[int]  # first query
    ends: list[int]  # one beyond the last query
    starts: list[int]  # first visible row coordinate
    kv_lens: list[int]
    tables: npt.NDArray[np.int32]  # [n, width]


def indices(name: str, values: Any, ndim: int = 1) -> npt.NDArray[np.int64]:
    """Return integers as int64; TypeError for other kinds, ValueError for another number of axes."""
    array = np.asarray(values)
    if array.size == 0 and array.dtype.kind not in "iu":  # [] is float64
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}; it must be of integers")
    if array.ndim != ndim:
        raise ValueError(f"{name} has shape {array.shape}; it must have {ndim} axes")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} holds {array.max()}, beyond int64")
    return array.astype(np.int64, copy=False)


def block_ids(name: str, values: Any, num_blocks: int, *, writing: bool) -> npt.NDArray[np.int64]:
    """Return block ids that may be read; with `writing`, distinct ones without the reserved block."""
    return _within(name, indices(name, values), int(writing), num_blocks, writing, "block")


def slots(name: str, values: Any, num_blocks: int, block_size: int, *, distinct: bool) -> npt.NDArray[np.int64]:
    """Return slots of usable blocks."""
    array = indices(name, values)
    return _within(name, array, block_size, (num_blocks + 1) * block_size - 1, distinct, "slot")


def _within(
    name: str, array: npt.NDArray[np.int64], low: int, high: int, distinct: bool, what: str
) -> npt.NDArray[np.int64]:
    if array.size and not (low <= array.min() and array.max() <= high):
        bad = array[(array < low) | (array > high)][0]
        reserved = f"; {what}s below {low} belong to the reserved block 0" if 0 <= bad < low else ""
        raise ValueError(f"{name} holds {what} {bad}; it must be {low} to {high}{reserved}")
    if distinct and array.size > 1:
        ordered = np.sort(array)
        if (twice := ordered[1:][ordered[1:] == ordered[:-1]]).size:
            raise ValueError(f"{name} holds {what} {twice[0]} twice")
    return array


def step_rows(step: StepLike, group: int, block_size: int, num_blocks: int, num_tokens: int) -> Rows:
    """Return the sequences of a step, whose visible blocks all exist in the pool."""
    if step.block_size != block_size:
        raise ValueError(f"the step has block_size {step.block_size}; the storage has {block_size}")
    own = step.groups[group] if group else step
    tables = np.asarray(own.block_tables)
    indptr, kv_lens = np.asarray(step.qo_indptr), np.asarray(step.kv_lens)
    starts = np.maximum(own.kv_starts, step.kv_pads)
    n = len(kv_lens)
    if tables.shape[:1] != (n,) or starts.shape != (n,) or indptr.shape != (n + 1,):
        raise ValueError(
            f"the step's arrays do not agree on the number of sequences: block_tables {tables.shape}, "
            f"kv_lens {kv_lens.shape}, kv_starts {starts.shape}, qo_indptr {indptr.shape}"
        )
    if indptr[0] != 0 or indptr[-1] != num_tokens or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"qo_indptr must rise from 0 to {num_tokens}, the number of queries; it is {indptr}")
    if n:
        capacity = tables.shape[1] * block_size
        if kv_lens.min() < 0 or kv_lens.max() > capacity or starts.min() < 0:
            raise ValueError(
                f"kv_lens must be 0 to {capacity} (table width {tables.shape[1]} x block_size {block_size}) and "
                f"kv_starts not negative; kv_lens is {kv_lens}, the first visible positions are {starts}"
            )
        logical = np.arange(tables.shape[1])
        visible = (logical >= (starts // block_size)[:, None]) & (logical * block_size < kv_lens[:, None])
        visible &= (starts < kv_lens)[:, None]
        wrong = visible & ((tables < 1) | (tables > num_blocks))
        if wrong.any():
            row, entry = np.argwhere(wrong)[0]
            raise ValueError(
                f"block_tables[{row}, {entry}] is {tables[row, entry]}, in the visible part of the sequence; "
                f"the pool has blocks 1 to {num_blocks}"
            )
    return Rows(indptr[:-1].tolist(), indptr[1:].tolist(), starts.tolist(), kv_lens.tolist(), tables)


def output(name: str, array: Any, shape: tuple[int, ...], dtypes: tuple[np.dtype[Any], ...]) -> npt.NDArray[Any]:
    """Return the caller's array for results, or a new one of the first dtype."""
    if array is None:
        return np.empty(shape, dtypes[0])
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} is {type(array).__name__}; it must be a NumPy array")
    if array.shape != shape or array.dtype not in dtypes or not array.flags.writeable:
        wanted = " or ".join(str(dtype) for dtype in dict.fromkeys(dtypes))
        raise ValueError(
            f"{name} is {array.dtype} {array.shape}{'' if array.flags.writeable else ' (read-only)'}; "
            f"it must be a writable array of {wanted} {shape}"
        )
    return array
