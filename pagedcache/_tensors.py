"""Tensors of torch as NumPy arrays and back, without ever importing torch."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache._dtypes import storage_dtype

__all__ = ["as_array", "like", "on_host", "readable"]


def torch_of(value: Any) -> Any:
    """The torch module if `value` is a tensor of it, else None."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)  # another thread may be about to import it
    return torch if tensor is not None and isinstance(value, tensor) else None


def readable(value: Any, stored: str = "") -> Any:
    """`value`, or the same bits in an array where it is a CPU tensor of bfloat16, which NumPy cannot read.

    The array is ml_dtypes' bfloat16, without a copy. Where that is not installed: uint16 for a cache that
    has `stored` bfloat16, which takes it for that, and else float32, exactly.
    """
    if value is None or type(value) is np.ndarray:  # most often, in every layer
        return value
    torch = torch_of(value)
    if torch is None or value.dtype != torch.bfloat16 or value.device.type != "cpu" or value.requires_grad:
        return value
    bits = value.view(torch.int16).numpy().view(np.uint16)
    dtype = storage_dtype("bfloat16")
    if dtype != np.uint16 or stored == "bfloat16":
        return bits.view(dtype)
    return np.left_shift(bits, np.uint32(16), dtype=np.uint32).view(np.float32)


def on_host(array: Any) -> NDArray[Any]:
    """What an array holds, as one of the host's: itself, or a copy of CuPy's, which has to be asked for one."""
    get = None if isinstance(array, np.ndarray) else getattr(array, "get", None)
    return np.asarray(array if get is None else get())


def as_array(value: Any, name: str, stored: str = "") -> NDArray[Any]:
    """`value` as a NumPy array: as it is, or `readable`, or rounded from float64 to float32."""
    torch = torch_of(value)
    if torch is None:
        array = np.asarray(value)
    elif value.device.type != "cpu":
        raise TypeError(f"{name} is on {value.device}; the simple API takes CPU tensors: use {name}.cpu()")
    else:
        array = np.asarray(readable(value.detach(), stored))
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def like(value: Any, array: NDArray[Any]) -> Any:
    """`array` as what `value` is, a tensor or a NumPy array, and in its dtype."""
    torch = torch_of(value)
    if torch is None:
        return array.astype(np.float64) if np.asarray(value).dtype == np.float64 else array
    if array.dtype.kind == "V":  # ml_dtypes' bfloat16
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(value.dtype)
    return torch.from_numpy(array).to(value.dtype)
