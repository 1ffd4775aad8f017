"""The backend as a whole: arguments are made ready here, and the work is done in C."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.cpu import _native
from pagedcache.backends.cpu._storage import CpuStorage
from pagedcache.backends.host import batch, moves
from pagedcache.backends.host.arguments import output
from pagedcache.backends.host.arguments import slots as checked_slots
from pagedcache.backends.host.formats import numbers, put, widened
from pagedcache.backends.host.merge import merged
from pagedcache.backends.host.quantised import quantised
from pagedcache.backends.host.queries import dtype_of_out, parts_of, shape_of_q
from pagedcache.backends.host.rule import Rule, chosen_precision, make_rule
from pagedcache.backends.protocol import Backend, Capabilities, StepLike
from pagedcache.spec import CacheSpec

__all__ = ["CpuBackend"]

DTYPES = ("float32", "float16", "bfloat16", "int8", "float8_e4m3")
VARIANTS = ("window", "sink_tokens", "sink_logits", "softcap", "alibi", "mask")
FLOAT32 = np.dtype(np.float32)


def usable_threads() -> int:
    """How many threads kernels may use: PAGEDCACHE_NUM_THREADS, else one per processor that this process may run on."""
    asked = os.environ.get("PAGEDCACHE_NUM_THREADS", "")
    if not asked:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not asked.isdecimal() or int(asked) < 1:
        raise ValueError(f"PAGEDCACHE_NUM_THREADS is {asked!r}; it must be a number of threads, 1 or more")
    return int(asked)


class CpuBackend:
    """Attention in native kernels, at the speed of memory or of the multipliers.

    Parameters
    ----------
    threads : int, optional
        Most threads of a call; by default the environment variable PAGEDCACHE_NUM_THREADS, else one per
        processor. Results do not depend on it, bit for bit.

    Notes
    -----
    The instruction set is the best that the processor has; the environment variable PAGEDCACHE_ISA
    names another one. Where it multiplies bfloat16 as it is (AVX-512-BF16), that is the default precision
    of bfloat16 storage; everything else is computed in float32.

    Examples
    --------
    >>> backend = CpuBackend(threads=1)
    >>> storage = backend.allocate(CacheSpec(layers=1, kv_heads=1, head_dim=2, block_size=4), num_blocks=3)
    >>> ones = np.ones((2, 1, 2), np.float32)
    >>> backend.write(storage, 0, ones, ones, slots=[8, 9])
    >>> storage.view(0)[0][2, :, 0, 0].tolist()
    [1.0, 1.0, 0.0, 0.0]
    """

    name = "cpu"
    device = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise ValueError(f"threads is {threads!r}; it must be 1 or more, or None for one per processor")
        self.threads = usable_threads() if threads is None else threads
        self.capabilities = Capabilities(
            dtypes=frozenset(DTYPES),
            layouts=frozenset({"NHD", "HND"}),
            max_block_size=1024,
            head_dims=None,
            variants=frozenset(VARIANTS),
            precisions={dtype: _offered(dtype)[0] for dtype in DTYPES},
            synchronous=True,
        )

    def allocate(self, spec: CacheSpec, num_blocks: int, buffers: Sequence[Sequence[Any]] | None = None) -> CpuStorage:
        """Return a pool in own memory, all zero, or in the caller's buffers; see HostStorage."""
        self.capabilities.require(spec)
        return CpuStorage(spec, num_blocks, buffers)

    def write(self, storage: CpuStorage, layer: int, k: Any, v: Any, slots: Any) -> None:
        """Store new tokens, rounded to the storage's dtype.

        Parameters
        ----------
        k, v : float32, float16 or bfloat16 [tokens, kv_heads, head_dim] and [.., v_head_dim]
            Any strides and byte order; finite where the storage has scales.
        slots : int64 [tokens]
            Distinct slots of usable blocks.
        """
        spec, place = storage.spec, storage.place(layer)
        at = slots
        if not _native.are_slots(place, at):
            at = np.ascontiguousarray(
                checked_slots("slots", slots, storage.num_blocks, spec.block_size, distinct=False)
            )
        arrays = []
        for name, values, width in zip("kv", (k, v), (spec.head_dim, spec.v_head_dim), strict=True):
            array = np.ascontiguousarray(numbers(name, values, spec.dtype))
            if array.shape != (at.size, spec.kv_heads, width):
                raise ValueError(f"{name} has shape {array.shape}; it must be {(at.size, spec.kv_heads, width)}")
            if spec.has_scales:
                require_finite(name, array, spec.dtype)
            arrays.append(array)
        _native.store(place, arrays[0], arrays[1], at, self.threads)

    def attend(
        self,
        storage: CpuStorage,
        layer: int,
        q: Any,
        step: StepLike,
        *,
        scale: float | None = None,
        window: int | None = None,
        sink_tokens: int = 0,
        sink_logits: Any = None,
        softcap: float | None = None,
        alibi_slopes: Any = None,
        mask: Any = None,
        mask_indptr: Any = None,
        precision: str | None = None,
        out: npt.NDArray[Any] | None = None,
        lse: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[Any]:
        """Return causal attention of a ragged batch over its blocks; arguments as in the Backend protocol.

        Parameters
        ----------
        precision : {None, "exact", "native"}
            "native" rounds q and weights to bfloat16 where the storage is bfloat16 and the processor
            multiplies it as it is; "exact" computes in float32.
        """
        spec, place = storage.spec, storage.place(layer)
        queries = q
        if not (type(q) is np.ndarray and q.dtype == FLOAT32 and q.flags.carray):
            queries = np.ascontiguousarray(numbers("q", q, spec.dtype))
        tokens, q_heads, _ = shape_of_q(queries, spec)
        native = chosen_precision(self.name, precision, _offered(spec.dtype)) == "native"
        rule = make_rule(
            q_heads, spec.head_dim, scale=scale, window=window, sink_tokens=sink_tokens, sink_logits=sink_logits,
            softcap=softcap, alibi_slopes=alibi_slopes,
        )  # fmt: skip
        group = spec.locate(layer)[0]
        plan = _plan(place, step, group, tokens, q_heads, rule, mask, mask_indptr)
        shape = (tokens, q_heads, spec.v_head_dim)
        result = output("out", out, shape, (dtype_of_out(q, queries), FLOAT32))
        logs = None if lse is None else output("lse", lse, shape[:2], (FLOAT32,))
        plain = result if _is_plain(result, queries) else np.empty(shape, np.float32)
        plain_logs = logs if logs is None or logs.flags.c_contiguous else np.empty(shape[:2], np.float32)
        _native.attend(
            place, plan, queries, plain, plain_logs, rule.scale, rule.softcap, rule.alibi_slopes, rule.sink_logits,
            native, self.threads,
        )  # fmt: skip
        if plain is not result:
            put(result, plain)
        if logs is not None and plain_logs is not logs:
            logs[...] = plain_logs
        return result

    def merge(self, outs: Any, lses: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Return attention over the union of disjoint sets of keys; see the Backend protocol."""
        parts, values, logs = parts_of(outs, lses)
        with np.errstate(all="ignore"):
            mean, lse = merged(widened(values), logs)
        out = np.empty(mean.shape, dtype_of_out(parts, values))
        put(out, mean)
        return out, lse

    def copy_blocks(self, storage: CpuStorage, pairs: Any) -> None:
        """Copy blocks, pairs int32 [m, 2] (src, dst), in every plane; none is both src and dst."""
        moves.copy_blocks(storage, pairs)

    def copy_slots(self, storage: CpuStorage, src: Any, dst: Any) -> None:
        """Copy int64 slots in every plane; every source is read before a destination is written."""
        moves.copy_slots(storage, src, dst)

    def read_blocks(
        self, storage: CpuStorage, ids: Any, layers: Sequence[int] | None = None, into: Any = None
    ) -> npt.NDArray[np.uint8]:
        """Return records uint8 [ids, layers, spec.record_nbytes]: K, V, K scales, V scales; always NHD."""
        return moves.read_blocks(storage, ids, layers, into)

    def write_blocks(self, storage: CpuStorage, ids: Any, data: Any, layers: Sequence[int] | None = None) -> None:
        """Store what read_blocks returned, whatever the layout it was read from."""
        moves.write_blocks(storage, ids, data, layers)

    def synchronize(self) -> None:
        """Do nothing: work is done when a call returns."""

    def fence(self) -> int:
        """Return 0: no work is ever outstanding."""
        return 0


def _offered(dtype: str) -> tuple[str, ...]:
    return ("native", "exact") if dtype == "bfloat16" and _native.has_native() else ("exact",)


def _is_plain(result: npt.NDArray[Any], queries: npt.NDArray[Any]) -> bool:
    """Whether C can write there: compact, of a dtype it knows, apart from q or the very same rows."""
    known = result.dtype == np.float32 or result.dtype == np.float16 or result.dtype.name == "bfloat16"
    apart = not np.may_share_memory(result, queries)
    return bool(known and result.flags.carray and apart)


def _plan(
    place: _native.Layer, step: StepLike, group: int, tokens: int, q_heads: int, rule: Rule, mask: Any, mask_indptr: Any
) -> _native.Plan:
    """Return the work of a step, from the step's memo if another layer has asked for it already."""
    memo = getattr(step, "memo", None) if mask is None and mask_indptr is None else None
    # With the step's own id, since whoever copies a step's attributes copies its memo too.
    key = ("cpu", id(step), group, tokens, q_heads, rule.window, rule.sink_tokens, place.num_blocks, place.kv_heads)
    plan = None if memo is None else memo.get(key)
    if plan is None:
        plan = _native.Plan.make(
            place, step, group, tokens, q_heads // place.kv_heads, rule.window, rule.sink_tokens, mask, mask_indptr
        )
        if plan is None:
            masks = batch.trees(mask, mask_indptr, step.qo_indptr)
            sights = batch.sequences(step, group, place.block_size, place.num_blocks, tokens, rule, masks)
            batch.shared_prefixes(step, sights, place.block_size)
            raise ValueError("the arrays of the step contradict each other")
        if memo is not None:
            memo[key] = plan
    return plan


def require_finite(name: str, array: npt.NDArray[Any], dtype: str) -> None:
    """Raise ValueError, naming the first value that is not finite: no scale could stand for it."""
    if not _native.are_finite(array):
        quantised(name, widened(array), dtype)


if TYPE_CHECKING:
    _conforms: Backend = CpuBackend()
