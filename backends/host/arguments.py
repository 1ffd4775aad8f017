"""What comes in from outside, checked before anything is read or written by it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.exchange import as_numpy

__all__ = ["as_output", "block_ids", "indices", "output", "slots"]


def indices(name: str, values: Any, ndim: int = 1) -> npt.NDArray[np.int64]:
    """Return integers as int64; TypeError for other kinds, ValueError for another number of axes."""
    array = as_numpy(values, name)
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


def as_output(array: Any, name: str) -> npt.NDArray[Any] | None:
    """Return the caller's array for results, of any library, as NumPy's; None for None."""
    return None if array is None else as_numpy(array, name, copy=False)


def output(name: str, array: Any, shape: tuple[int, ...], dtypes: tuple[np.dtype[Any], ...]) -> npt.NDArray[Any]:
    """Return the caller's array for results, of any library, as NumPy's; or a new one of the first dtype."""
    if array is None:
        return np.empty(shape, dtypes[0])
    taken = as_numpy(array, name, copy=False)
    if taken.shape != shape or taken.dtype not in dtypes or not taken.flags.writeable:
        wanted = " or ".join(str(dtype) for dtype in dict.fromkeys(dtypes))
        raise ValueError(
            f"{name} is {taken.dtype} {taken.shape}{'' if taken.flags.writeable else ' (read-only)'}; "
            f"it must be a writable array of {wanted} {shape}"
        )
    return taken
