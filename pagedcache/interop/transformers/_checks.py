"""What the model brings to a forward, checked before anything is done."""

import numpy as np
import torch
from numpy.typing import NDArray

from pagedcache.errors import UnsupportedModel
from pagedcache.interop.transformers._layout import Layout
from pagedcache.interop.transformers._rows import Rows
from pagedcache.interop.transformers._tensors import DTYPES
from pagedcache.spec import CacheSpec

__all__ = ["check_shapes", "check_window", "new_pads"]


def check_shapes(spec: CacheSpec, key: torch.Tensor, value: torch.Tensor, *, may_round: bool) -> None:
    """Raise where K and V are not what the configuration said."""
    for name, tensor, size in (("K", key, spec.head_dim), ("V", value, spec.v_head_dim)):
        if tensor.shape[1] != spec.kv_heads or tensor.shape[3] != size:
            raise UnsupportedModel(
                f"{name} has {tensor.shape[1]} heads of {tensor.shape[3]}; the configuration says {spec.kv_heads} "
                f"heads of {size}"
            )
    stored = DTYPES.get(spec.dtype)
    if not may_round and stored is not None and torch.promote_types(stored, key.dtype) != stored:
        raise ValueError(
            f"K and V are {key.dtype}, and would be rounded to the configuration's dtype, {spec.dtype}: "
            "say dtype= to have that, or the model's own"
        )


def check_window(layout: Layout, end: int) -> None:
    """Raise where the kernel would see beyond the windows of a model that has no full layer."""
    window = min(window for window in layout.windows if window is not None)
    if end > window:
        raise UnsupportedModel(
            f"{end} tokens, and every layer of the model has a window of {window}: beyond it use level='gather'"
        )


def new_pads(rows: Rows, value: torch.Tensor, mask: torch.Tensor | None) -> NDArray[np.int64] | None:
    """How many of the new tokens of each row are pads; `mask` says how many of all tokens."""
    batch = len(value)
    known = rows.pads if len(rows.ids) else np.zeros(batch, np.int64)
    if mask is None and not known.any():
        return None
    pads = np.zeros(batch, np.int64) if mask is None else mask.numpy()
    fresh: NDArray[np.int64] = pads - known if len(known) == batch else pads
    if len(known) == batch and ((fresh < 0) | (fresh > 0) & (known < rows.length)).any():
        raise ValueError(
            f"the mask says that the rows begin with {pads.tolist()} pads, and the cache that they began with "
            f"{known.tolist()}: give generate the attention_mask of all tokens, those in the cache included"
        )
    return fresh
