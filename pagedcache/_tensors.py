"""Tensors of torch as NumPy arrays, without ever importing torch."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray


def torch_of(value: Any) -> Any:
    """The torch module if `value` is a tensor of it, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


def as_array(value: Any, name: str) -> NDArray[Any]:
    """`value` as a NumPy array; a CPU tensor without a copy, except bfloat16, which NumPy lacks."""
    torch = torch_of(value)
    if torch is None:
        return np.asarray(value)
    if value.device.type != "cpu":
        raise TypeError(f"{name} is on {value.device}; the simple API takes CPU tensors: use {name}.cpu()")
    tensor = value.detach()
    array: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array
