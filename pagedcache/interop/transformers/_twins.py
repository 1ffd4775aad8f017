"""Rows of a batch that are the same text so far: stored once, as long as they stay the same.

Beam search and several samples of one prompt repeat the prompt's row before the first forward. The cache is not told
what the tokens are; so rows are the same if their Q, K and V are, value for value, in every layer.
"""

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["are_same", "leaders_of"]

Ints = NDArray[np.int64]
States = tuple[torch.Tensor, ...]


def leaders_of(states: States, alike: Ints, skip: Ints) -> Ints:
    """For each row the first one that equals it, maybe itself.

    Parameters
    ----------
    states : tensors [rows, heads, tokens, size]
    alike : int64 [rows]
        Rows with the same number hold the same so far.
    skip : int64 [rows]
        Leading tokens that do not count: pads.
    """
    leaders = np.arange(len(alike))
    for row in range(1, len(alike)):
        for other in np.unique(leaders[:row]):
            same_past = alike[row] == alike[other] and skip[row] == skip[other]
            if same_past and _equal(states, row, other, skip[row]):
                leaders[row] = other
                break
    return leaders


def are_same(states: States, leaders: Ints, skip: Ints) -> bool:
    """Whether each row equals its leader in these states too."""
    followers = np.flatnonzero(leaders != np.arange(len(leaders)))
    return all(_equal(states, int(row), int(leaders[row]), int(skip[row])) for row in followers)


def _equal(states: States, row: int, other: int, skip: int) -> bool:
    last = states[-1]  # a look at one token tells most rows apart
    if not torch.equal(last[row, :, -1], last[other, :, -1]):
        return False
    return all(torch.equal(each[row, :, skip:], each[other, :, skip:]) for each in states)
