"""Attention over several sets of keys, put together."""

import numpy as np
import numpy.typing as npt

__all__ = ["merged"]

Float32 = npt.NDArray[np.float32]


def merged(outs: Float32, lses: Float32) -> tuple[Float32, Float32]:
    """Return out and lse over the union of disjoint sets of keys, [parts, ...] on the first axis.

    Each part weighs as much as its share of the softmax's denominator, exp(lse); what stands in
    the out of a part without any does not matter, NaN included.
    """
    top = lses.max(axis=0)
    weights = np.exp(lses - np.where(top == -np.inf, np.float32(0), top))
    total = weights.sum(axis=0)
    shown = np.where(weights[..., None] != 0, outs, np.float32(0))
    mean = (shown * weights[..., None]).sum(axis=0) / np.where(total == 0, np.float32(1), total)[..., None]
    return mean, top + np.log(total)
