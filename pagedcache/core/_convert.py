"""Index arrays from callers: any integers in, contiguous native int32 or int64 out, or a clear error.

Nothing is ever truncated: floats and bools are refused, and so is a value that does not fit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INT32 = np.dtype(np.int32)
_INT64 = np.dtype(np.int64)


def int32_array(values: Any, name: str) -> NDArray[np.int32]:
    """`values` as a contiguous int32 array of one dimension.

    Parameters
    ----------
    values : array-like of int, [n]
        A list, tuple or array of any integer type; anything with ``__array__`` or the buffer protocol.
    name : str
        What to call it in an error.

    Raises
    ------
    TypeError
        Not integers.
    ValueError
        Not one-dimensional, or a value beyond int32.
    """
    return _convert(values, name, _INT32)


def int64_array(values: Any, name: str) -> NDArray[np.int64]:
    """`values` as a contiguous int64 array of one dimension; see `int32_array`."""
    return _convert(values, name, _INT64)


def _convert(values: Any, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    if type(values) is np.ndarray and values.dtype == dtype and values.ndim == 1 and _is_plain(values):
        return values
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise TypeError(f"{name} must be integers in one dimension: {error}") from None
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {array.ndim} (shape {array.shape})")
    if array.size == 0 and array.dtype.kind in "iuf":  # an empty list becomes float64
        return np.empty(0, dtype)
    if array.dtype.kind not in "iu":
        if not isinstance(values, np.ndarray) and all(type(value) is int for value in values):
            # NumPy makes objects, or even floats, of integers beyond int64
            raise ValueError(f"{name} holds {max(values, key=abs)}, which does not fit {dtype}")
        raise TypeError(f"{name} must be integers, not {array.dtype}: convert them explicitly")
    limits = np.iinfo(dtype)
    low, high = int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        raise ValueError(f"{name} holds {high if high > limits.max else low}, which does not fit {dtype}")
    return np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED"])


def token_sequence(prompts: Any, name: str) -> Sequence[Any] | NDArray[Any]:
    """`prompts` where it is a sequence of token lists, else a TypeError."""
    if isinstance(prompts, (str, bytes)) or not (
        isinstance(prompts, Sequence) or (isinstance(prompts, np.ndarray) and prompts.ndim == 2)
    ):
        raise TypeError(f"{name} must be a list of token lists, not {_described(prompts)}; wrap a single prompt in []")
    return prompts


def ragged_tokens(prompts: Any, name: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Token lists, one after the other, with the offsets of their ends.

    Parameters
    ----------
    prompts : sequence of array-like of int
        One list of token ids per prompt; lists may be empty.

    Returns
    -------
    tokens : int32 [total]
    indptr : int64 [n + 1]
        Prompt i is ``tokens[indptr[i]:indptr[i + 1]]``.
    """
    arrays = [int32_array(prompt, f"{name}[{i}]") for i, prompt in enumerate(token_sequence(prompts, name))]
    indptr = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=indptr[1:])
    return (np.concatenate(arrays) if arrays else np.empty(0, np.int32)), indptr


def _is_plain(array: NDArray[Any]) -> bool:
    return array.flags.c_contiguous and array.flags.aligned


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return type(value).__name__
