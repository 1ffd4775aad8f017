"""One call of attend: all of its arguments, checked before anything is read or written."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends._step_like import StepLike
from pagedcache.backends.host.arguments import output
from pagedcache.backends.host.batch import sequences, shared_prefixes, trees
from pagedcache.backends.host.formats import numbers
from pagedcache.backends.host.queries import dtype_of_out, shape_of_q
from pagedcache.backends.host.rule import Rule, chosen_precision, make_rule
from pagedcache.backends.host.sight import Sight
from pagedcache.backends.host.storage import HostStorage

__all__ = ["AttendCall", "checked"]


@dataclass(frozen=True)
class AttendCall:
    """What attend goes by; see NumpyBackend.attend for the arguments that it is made of."""

    queries: npt.NDArray[Any]  # [tokens, q_heads, head_dim]
    rule: Rule
    sights: list[Sight]  # one per sequence
    groups: list[tuple[range, int]]  # neighbours, and how many leading keys they share
    out: npt.NDArray[Any]  # [tokens, q_heads, v_head_dim], the caller's or new
    lse: npt.NDArray[np.float32]  # [tokens, q_heads]


def checked(
    backend: str, storage: HostStorage, layer: int, q: Any, step: StepLike, *, mask: Any = None,
    mask_indptr: Any = None, precision: Any = None, out: Any = None, lse: Any = None, **variants: Any,
) -> AttendCall:  # fmt: skip
    """Return the call, or raise what is wrong with its arguments; nothing was written."""
    spec = storage.spec
    queries = numbers("q", q, spec.dtype)
    tokens, q_heads, _ = shape_of_q(queries, spec)
    chosen_precision(backend, precision, ["exact"])
    rule = make_rule(q_heads, spec.head_dim, **variants)
    masks = trees(mask, mask_indptr, step.qo_indptr)
    group = spec.locate(layer)[0]
    sights = sequences(step, group, spec.block_size, storage.num_blocks, tokens, rule, masks)
    shape = (tokens, q_heads, spec.v_head_dim)
    return AttendCall(
        queries,
        rule,
        sights,
        shared_prefixes(step, sights, spec.block_size),
        output("out", out, shape, (dtype_of_out(q, queries), np.dtype(np.float32))),
        output("lse", lse, shape[:2], (np.dtype(np.float32),)),
    )
