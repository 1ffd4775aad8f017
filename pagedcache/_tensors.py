"""Tensors of torch as NumPy arrays and back, without ever importing torch."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache.exchange import as_floats

__all__ = ["as_array", "like", "on_host"]


def torch_of(value: Any) -> Any:
    """The torch module if `value` is a tensor of it, else None."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)  # another thread may be about to import it
    return torch if tensor is not None and isinstance(value, tensor) else None


def on_host(array: Any) -> NDArray[Any]:
    """What an array holds, as one of the host's: itself, or a copy of CuPy's, which has to be asked for one."""
    get = None if isinstance(array, np.ndarray) else getattr(array, "get", None)
    return np.asarray(array if get is None else get())


def as_array(value: Any, name: str, stored: str = "") -> NDArray[Any]:
    """`value` as a NumPy array of floats, as `exchange.as_floats` has it; rounded from float64 to float32."""
    array = as_floats(value if torch_of(value) is None else value.detach(), name, stored)
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
