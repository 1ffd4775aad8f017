"""One call of write or attend: all of its arguments, checked and made ready for C."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.cpu import _native
from pagedcache.backends.cpu._storage import CpuStorage
from pagedcache.backends.host import batch
from pagedcache.backends.host.arguments import output, slots
from pagedcache.backends.host.formats import numbers, put, widened
from pagedcache.backends.host.quantised import quantised
from pagedcache.backends.host.queries import dtype_of_out, shape_of_q
from pagedcache.backends.host.rule import Rule, chosen_precision, make_rule
from pagedcache.backends.protocol import StepLike

__all__ = ["AttendCall", "WriteCall", "checked_attend", "checked_write", "precisions"]

FLOAT32 = np.dtype(np.float32)
Array = npt.NDArray[Any]


def precisions(dtype: str) -> tuple[str, ...]:
    """What attend offers for this storage type, the default first."""
    return ("native", "exact") if dtype == "bfloat16" and _native.has_native() else ("exact",)


@dataclass(slots=True)  # not frozen, which would cost microseconds in every layer
class WriteCall:
    """What write goes by; the arrays are compact."""

    place: _native.Layer
    k: Array  # [tokens, kv_heads, head_dim]
    v: Array  # [tokens, kv_heads, v_head_dim]
    slots: npt.NDArray[np.int64]  # [tokens]

    def run(self, threads: int) -> None:
        """Store."""
        _native.store(self.place, self.k, self.v, self.slots, threads)


def checked_write(storage: CpuStorage, layer: int, k: Any, v: Any, at: Any) -> WriteCall:
    """Return the call, or raise what is wrong with its arguments."""
    spec, place = storage.spec, storage.place(layer)
    if not _native.are_slots(place, at):
        at = np.ascontiguousarray(slots("slots", at, storage.num_blocks, spec.block_size, distinct=False))
    arrays = []
    for name, values, width in zip("kv", (k, v), (spec.head_dim, spec.v_head_dim), strict=True):
        array = np.ascontiguousarray(numbers(name, values, spec.dtype))
        if array.shape != (at.size, spec.kv_heads, width):
            raise ValueError(f"{name} has shape {array.shape}; it must be {(at.size, spec.kv_heads, width)}")
        if spec.has_scales and not _native.are_finite(array):
            quantised(name, widened(array), spec.dtype)  # names the first value that no scale fits
        arrays.append(widened(array) if spec.has_scales and width > _native.WIDEST else array)
    return WriteCall(place, arrays[0], arrays[1], at)


@dataclass(slots=True)  # not frozen, which would cost microseconds in every layer
class AttendCall:
    """What attend goes by; see CpuBackend.attend for the arguments that it is made of."""

    place: _native.Layer
    plan: _native.Plan  # who sees what, cut into pieces of work
    queries: Array  # [tokens, q_heads, head_dim], compact
    rule: Rule
    native: bool  # whether q and weights are rounded to bfloat16
    out: Array  # [tokens, q_heads, v_head_dim], the caller's or new
    lse: npt.NDArray[np.float32] | None  # [tokens, q_heads]

    def run(self, threads: int) -> Array:
        """Fill `out` and `lse`; where they are not as C writes them, by way of arrays that are."""
        out, lse, rule = self.out, self.lse, self.rule
        plain = out if _is_plain(out, self.queries) else np.empty(out.shape, np.float32)
        own = lse is not None and (not lse.flags.carray or np.may_share_memory(lse, self.queries))
        plain_lse = np.empty(lse.shape, np.float32) if lse is not None and own else lse
        _native.attend(
            self.place, self.plan, self.queries, plain, plain_lse, rule.scale, rule.softcap, rule.alibi_slopes,
            rule.sink_logits, self.native, threads,
        )  # fmt: skip
        if plain is not out:
            put(out, plain)
        if lse is not None and plain_lse is not lse:
            lse[...] = plain_lse
        return out


def checked_attend(
    backend: str, storage: CpuStorage, layer: int, q: Any, step: StepLike, *, mask: Any = None,
    mask_indptr: Any = None, precision: Any = None, out: Any = None, lse: Any = None, **variants: Any,
) -> AttendCall:  # fmt: skip
    """Return the call, or raise what is wrong with its arguments; nothing was written."""
    spec, place = storage.spec, storage.place(layer)
    queries = q
    if not (type(q) is np.ndarray and q.dtype == FLOAT32 and q.flags.carray):
        queries = np.ascontiguousarray(numbers("q", q, spec.dtype))
    tokens, q_heads, _ = shape_of_q(queries, spec)
    native = chosen_precision(backend, precision, precisions(spec.dtype)) == "native"
    rule = make_rule(q_heads, spec.head_dim, **variants)
    plan = _plan(place, step, spec.locate(layer)[0], tokens, q_heads, rule, mask, mask_indptr)
    shape = (tokens, q_heads, spec.v_head_dim)
    return AttendCall(
        place,
        plan,
        queries,
        rule,
        native,
        output("out", out, shape, (dtype_of_out(q, queries), FLOAT32)),
        None if lse is None else output("lse", lse, shape[:2], (FLOAT32,)),
    )


def _plan(
    place: _native.Layer, step: StepLike, group: int, tokens: int, q_heads: int, rule: Rule, mask: Any, mask_indptr: Any
) -> _native.Plan:
    plan = _native.Plan.of(
        place, step, group, tokens, q_heads // place.kv_heads, rule.window, rule.sink_tokens, mask, mask_indptr
    )
    if plan is None:  # something is wrong; this finds out what
        masks = batch.trees(mask, mask_indptr, step.qo_indptr)
        sights = batch.sequences(step, group, place.block_size, place.num_blocks, tokens, rule, masks)
        batch.shared_prefixes(step, sights, place.block_size)
        raise ValueError("the arrays of the step contradict each other")
    return plan


def _is_plain(out: Array, queries: Array) -> bool:
    """Whether C can write there: compact, of a dtype it knows, and apart from what it reads."""
    known = out.dtype == np.float32 or out.dtype == np.float16 or out.dtype.name == "bfloat16"
    return bool(known and out.flags.carray and not np.may_share_memory(out, queries))
