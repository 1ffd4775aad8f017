"""Tensors of torch as NumPy arrays and back, without ever importing torch."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray


def torch_of(value: Any) -> Any:
    """The torch module if `value` is a tensor of it, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


def as_array(value: Any, name: str) -> NDArray[Any]:
    """`value` as a NumPy array, float64 rounded to float32.

    A CPU tensor is not copied, except bfloat16, which NumPy lacks: it becomes float32.
    """
    torch = torch_of(value)
    if torch is None:
        array = np.asarray(value)
    elif value.device.type != "cpu":
        raise TypeError(f"{name} is on {value.device}; the simple API takes CPU tensors: use {name}.cpu()")
    else:
        tensor = value.detach()
        array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def like(value: Any, array: NDArray[Any]) -> Any:
    """`array` as what `value` is, a tensor or a NumPy array, and in its dtype."""
    torch = torch_of(value)
    if torch is not None:
        return torch.from_numpy(array).to(value.dtype)
    return array.astype(np.float64) if np.asarray(value).dtype == np.float64 else array
