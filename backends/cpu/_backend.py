"""The backend as a whole: arguments are made ready here, and the work is done in C."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.cpu import _moves, _native
from pagedcache.backends.cpu._call import checked_attend, checked_write, precisions
from pagedcache.backends.cpu._storage import CpuStorage
from pagedcache.backends.host.arguments import as_output
from pagedcache.backends.host.formats import put, widened
from pagedcache.backends.host.merge import merged
from pagedcache.backends.host.queries import dtype_of_out, parts_of
from pagedcache.backends.protocol import Backend, Capabilities, ChecksAttend, HasThreads, StepLike, WritesAndAttends
from pagedcache.exchange import as_floats
from pagedcache.spec import CacheSpec

__all__ = ["CpuBackend"]

MOST_THREADS = 256  # that the team has room for
DTYPES = ("float32", "float16", "bfloat16", "int8", "float8_e4m3")
NDARRAY = np.ndarray
VARIANTS = ("window", "sink_tokens", "sink_logits", "softcap", "alibi", "mask")


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
        self.threads = min(usable_threads() if threads is None else threads, MOST_THREADS)
        self.capabilities = Capabilities(
            dtypes=frozenset(DTYPES),
            layouts=frozenset({"NHD", "HND"}),
            max_block_size=1024,
            head_dims=None,
            variants=frozenset(VARIANTS),
            precisions={dtype: precisions(dtype)[0] for dtype in DTYPES},
            synchronous=True,
            instruction_set=_native.current(),
        )

    def allocate(self, spec: CacheSpec, num_blocks: int, buffers: Sequence[Sequence[Any]] | None = None) -> CpuStorage:
        """Return a pool in own memory, all zero, or in the caller's buffers; see HostStorage."""
        self.capabilities.require(spec)
        return CpuStorage(spec, num_blocks, buffers)

    def with_threads(self, threads: int) -> "CpuBackend":
        """Return a backend whose calls take at most so many threads."""
        return CpuBackend(threads)

    def instruction_sets(self) -> dict[str, Any]:
        """Return which one runs, which this processor could run, and which were compiled, the least first.

        >>> sets = CpuBackend().instruction_sets()
        >>> sets["current"] in sets["supported"] and set(sets["supported"]) <= set(sets["compiled"])
        True
        """
        return {
            "current": _native.current(),
            "supported": list(_native.supported()),
            "compiled": list(_native.compiled()),
        }

    def write(self, storage: CpuStorage, layer: int, k: Any, v: Any, slots: Any) -> None:
        """Store new tokens, rounded to the storage's dtype.

        Parameters
        ----------
        k, v : float32, float16 or bfloat16 [tokens, kv_heads, head_dim] and [.., v_head_dim]
            Any strides and byte order; finite where the storage has scales.
        slots : int64 [tokens]
            Distinct slots of usable blocks.
        """
        checked_write(storage, layer, k, v, slots).run(self.threads)

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
        if type(q) is not NDARRAY or (out is not None and type(out) is not NDARRAY):
            q, out = as_floats(q, "q", storage.spec.dtype), as_output(out, "out")
        plain = window is sink_logits is softcap is alibi_slopes is mask is mask_indptr is precision is None
        if plain and sink_tokens == 0:
            done = _native.usual_attend(storage.place(layer), q, None, None, step, scale, out, lse, self.threads)
            if done is not None:
                return done
        return checked_attend(
            self.name, storage, layer, q, step, scale=scale, window=window, sink_tokens=sink_tokens,
            sink_logits=sink_logits, softcap=softcap, alibi_slopes=alibi_slopes, mask=mask, mask_indptr=mask_indptr,
            precision=precision, out=out, lse=lse,
        ).run(self.threads)  # fmt: skip

    def check_attend(self, storage: CpuStorage, layer: int, q: Any, step: StepLike, **options: Any) -> None:
        """Raise what `attend` would raise for the same arguments, and do nothing else."""
        checked_attend(self.name, storage, layer, q, step, **options)

    def write_and_attend(
        self, storage: CpuStorage, layer: int, q: Any, k: Any, v: Any, step: StepLike, *, scale: float | None = None,
        out: Any = None, lse: Any = None, **options: Any,
    ) -> npt.NDArray[Any]:  # fmt: skip
        """Store k and v at the step's slots, then attend, in one call into C; all is checked before."""
        if not (type(q) is type(k) is type(v) is NDARRAY) or (out is not None and type(out) is not NDARRAY):
            stored = storage.spec.dtype
            q, k, v = as_floats(q, "q", stored), as_floats(k, "k", stored), as_floats(v, "v", stored)
            out = as_output(out, "out")
        if not options:
            done = _native.usual_attend(storage.place(layer), q, k, v, step, scale, out, lse, self.threads)
            if done is not None:
                return done
        call = checked_attend(self.name, storage, layer, q, step, scale=scale, out=out, lse=lse, **options)
        group = storage.spec.locate(layer)[0]
        checked_write(storage, layer, k, v, (step.groups[group] if group else step).slots).run(self.threads)
        return call.run(self.threads)

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
        _moves.copy_blocks(storage, pairs, self.threads)

    def copy_slots(self, storage: CpuStorage, src: Any, dst: Any) -> None:
        """Copy int64 slots in every plane; every source is read before a destination is written."""
        _moves.copy_slots(storage, src, dst, self.threads)

    def read_blocks(
        self, storage: CpuStorage, ids: Any, layers: Sequence[int] | None = None, into: Any = None
    ) -> npt.NDArray[np.uint8]:
        """Return records uint8 [ids, layers, spec.record_nbytes]: K, V, K scales, V scales; always NHD."""
        return _moves.read_blocks(storage, ids, layers, into, self.threads)

    def write_blocks(self, storage: CpuStorage, ids: Any, data: Any, layers: Sequence[int] | None = None) -> None:
        """Store what read_blocks returned, whatever the layout it was read from."""
        _moves.write_blocks(storage, ids, data, layers, self.threads)

    def synchronize(self) -> None:
        """Do nothing: work is done when a call returns."""

    def fence(self) -> int:
        """Return 0: no work is ever outstanding."""
        return 0


if TYPE_CHECKING:
    _conforms: Backend = CpuBackend()
    _checks: ChecksAttend = CpuBackend()
    _at_once: WritesAndAttends = CpuBackend()
    _threads: HasThreads = CpuBackend()
