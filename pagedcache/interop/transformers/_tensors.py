"""Tensors [batch, heads, tokens, size] of torch as the arrays [tokens, heads, size] that a KVCache reads, and back."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pagedcache._tensors import like
from pagedcache.exchange import numpy_dtype

__all__ = ["DTYPES", "flat", "from_rows", "pool_tensor", "refuse_foreign"]

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def refuse_foreign(tensor: torch.Tensor) -> None:
    """Raise where K is not on the CPU, wants a gradient, or is of a type that no cache stores."""
    if tensor.device.type != "cpu":
        raise ValueError(f"K and V are on {tensor.device}, and this cache is on the CPU: use model.to('cpu')")
    if tensor.requires_grad:
        raise ValueError("K and V want gradients, which a PagedCache cuts off: run the model under torch.no_grad()")
    if tensor.dtype not in DTYPES.values():
        raise TypeError(f"K and V are {tensor.dtype}; a PagedCache takes {', '.join(DTYPES)}")


def flat(tensor: torch.Tensor, taken: torch.Tensor | None, stored: str) -> Any:
    """The tokens of all rows one after the other, or those `taken` of them; without a copy where the layout allows."""
    batch, heads, count, size = tensor.shape
    rows = tensor.transpose(1, 2).reshape(batch * count, heads, size)
    if taken is not None:
        rows = rows.index_select(0, taken)
    if rows.dtype != torch.bfloat16:
        return rows.numpy()
    dtype = numpy_dtype("bfloat16")
    if dtype == np.uint16 and stored != "bfloat16":  # ml_dtypes is missing, and bits would be taken for integers
        return rows.float().numpy()
    return rows.view(torch.int16).numpy().view(dtype)  # in a fraction of the time that torch's DLPack takes


def from_rows(out: NDArray[Any], query: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
    """Results [tokens, heads, size] as a tensor [batch, tokens, heads, size] in the dtype of the queries."""
    batch, heads, count, _ = query.shape
    as_is = out.dtype == np.float32 and query.dtype == torch.float32  # most often, in every layer
    rows: torch.Tensor = torch.from_numpy(out) if as_is else like(query, out)
    if given is not None:
        rows = rows.index_select(0, given) if len(rows) else rows.new_zeros(batch * count, *rows.shape[1:])
    return rows.view(batch, count, heads, -1)


def pool_tensor(array: NDArray[Any], dtype: str) -> torch.Tensor:
    """Memory of a cache as a tensor over it."""
    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
