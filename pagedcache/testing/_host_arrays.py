"""Arguments of a call whose work is done later: copied aside, or read when it is done."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pagedcache.spec import CacheSpec

__all__ = ["HostStep", "held"]

SHARED = ("qo_indptr", "kv_lens", "kv_pads", "positions")
OF_A_GROUP = ("slots", "kv_starts", "block_tables")


def held(value: Any, *, copy: bool) -> Any:
    """Return an array (or what makes one) as one that lasts: a copy, or the caller's own memory."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    return np.array(value) if copy else np.asarray(value)


class HostStep:
    """The arrays of a step, which outlive it: a closed Step cannot be asked any more, its memory can be read."""

    def __init__(self, step: Any, spec: CacheSpec, hold: Callable[[Any], Any]) -> None:
        self.block_size, self.num_sequences, self.num_tokens = step.block_size, step.num_sequences, step.num_tokens
        for name in (*SHARED, *OF_A_GROUP):
            setattr(self, name, hold(getattr(step, name)))
        self.shared_prefixes = hold(step.shared_prefixes)
        self.groups = [self] if spec.num_groups == 1 else [_HostGroup(group, hold) for group in step.groups]


class _HostGroup:
    def __init__(self, group: Any, hold: Callable[[Any], Any]) -> None:
        for name in OF_A_GROUP:
            setattr(self, name, hold(getattr(group, name)))
