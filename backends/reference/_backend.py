"""The backend as a whole: arguments are checked here, and the work is done in the modules beside."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.host import moves
from pagedcache.backends.host.arguments import slots as _slots
from pagedcache.backends.host.formats import narrowed, numbers, put, widened
from pagedcache.backends.host.merge import merged
from pagedcache.backends.host.quantised import quantised
from pagedcache.backends.host.queries import dtype_of_out, parts_of
from pagedcache.backends.host.storage import HostStorage
from pagedcache.backends.protocol import Backend, Capabilities, ChecksAttend, StepLike
from pagedcache.backends.reference._call import checked
from pagedcache.backends.reference._cascade import attend_batch
from pagedcache.backends.reference._reader import LayerReader
from pagedcache.backends.reference._scratch import Scratch
from pagedcache.spec import CacheSpec

__all__ = ["NumpyBackend"]

DTYPES = ("float32", "float16", "bfloat16", "int8", "float8_e4m3")
VARIANTS = ("window", "sink_tokens", "sink_logits", "softcap", "alibi", "mask")


class NumpyBackend:
    """Attention in float32 NumPy, for reading and for comparing others with.

    Examples
    --------
    >>> backend = NumpyBackend()
    >>> storage = backend.allocate(CacheSpec(layers=1, kv_heads=1, head_dim=2, block_size=4), num_blocks=3)
    >>> ones = np.ones((2, 1, 2), np.float32)
    >>> backend.write(storage, 0, ones, ones, slots=[8, 9])
    >>> storage.view(0)[0][2, :, 0, 0].tolist()
    [1.0, 1.0, 0.0, 0.0]
    """

    name = "numpy"
    device = "cpu"
    capabilities = Capabilities(
        dtypes=frozenset(DTYPES),
        layouts=frozenset({"NHD", "HND"}),
        max_block_size=1024,
        head_dims=None,
        variants=frozenset(VARIANTS),
        precisions=dict.fromkeys(DTYPES, "exact"),
        synchronous=True,
    )

    def __init__(self) -> None:
        self._scratch = Scratch()

    def allocate(self, spec: CacheSpec, num_blocks: int, buffers: Sequence[Sequence[Any]] | None = None) -> HostStorage:
        """Return a pool in own memory, all zero, or in the caller's buffers; see HostStorage."""
        self.capabilities.require(spec)
        return HostStorage(spec, num_blocks, buffers)

    def write(self, storage: HostStorage, layer: int, k: Any, v: Any, slots: Any) -> None:
        """Store new tokens, rounded to the storage's dtype.

        Parameters
        ----------
        k, v : float32, float16 or bfloat16 [tokens, kv_heads, head_dim] and [.., v_head_dim]
            Any strides and byte order; finite where the storage has scales.
        slots : int64 [tokens]
            Distinct slots of usable blocks.
        """
        spec = storage.spec
        at = _slots("slots", slots, storage.num_blocks, spec.block_size, distinct=False)
        planes = storage.raw(layer)
        rounded, scales = [], []
        for name, values, width, plane in zip("kv", (k, v), (spec.head_dim, spec.v_head_dim), planes, strict=True):
            array = numbers(name, values, spec.dtype)
            if array.shape != (at.size, spec.kv_heads, width):
                raise ValueError(f"{name} has shape {array.shape}; it must be {(at.size, spec.kv_heads, width)}")
            if spec.has_scales:
                codes, scale = quantised(name, widened(array), spec.dtype)
                rounded.append(codes)
                scales.append(scale)
            else:
                rounded.append(narrowed(array, plane.dtype))
        for plane, array in zip((*planes, *storage.raw_scales(layer)), (*rounded, *scales), strict=True):
            moves.put_slots(plane, spec.layout, at, array)

    def attend(
        self,
        storage: HostStorage,
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
        """Return causal attention of a ragged batch over its blocks.

        Parameters
        ----------
        q : float32, float16 or bfloat16 [tokens, q_heads, head_dim]
            ``q_heads`` is a multiple of kv_heads; query head h reads KV head ``h * kv_heads // q_heads``.
        step : StepLike
            Which sequences the tokens belong to, and their blocks.
        scale : float, optional
            Factor of the scores; ``head_dim ** -0.5`` if not given.
        window : int, optional
            Tokens that a query sees, its own included.
        sink_tokens : int
            Leading positions that are seen beside the window.
        sink_logits, alibi_slopes : float [q_heads], optional
            Terms of the softmax's denominator, -inf for none; slopes per position.
        softcap : float, optional
            Scores become ``softcap * tanh(score / softcap)``, before slopes and mask.
        mask, mask_indptr : uint8 [bytes] and int64 [n + 1], optional
            Bits [q_len, q_len] of each sequence over its new tokens; see the Backend protocol.
        precision : {None, "exact"}
            All is computed in float32.
        out : [tokens, q_heads, v_head_dim], optional
            Of q's dtype or float32; made in q's dtype if not given (float32 for uint16).
        lse : float32 [tokens, q_heads], optional
            Filled with the natural logarithm of each softmax's denominator, sink logits included.

        Raises
        ------
        UnsupportedByBackend
            ``precision="native"``.
        ValueError, TypeError
            Arguments that do not fit; nothing was written.
        """
        call = checked(
            self.name, storage, layer, q, step, scale=scale, window=window, sink_tokens=sink_tokens,
            sink_logits=sink_logits, softcap=softcap, alibi_slopes=alibi_slopes, mask=mask, mask_indptr=mask_indptr,
            precision=precision, out=out, lse=lse,
        )  # fmt: skip
        result = call.out
        single = result if result.dtype == np.float32 else np.empty(result.shape, np.float32)
        with np.errstate(all="ignore"):  # infinities and NaN of live tokens take their course
            scaled = widened(call.queries) * np.float32(call.rule.scale)
            reader = LayerReader(storage, layer, self._scratch)
            attend_batch(reader, scaled, call.sights, call.groups, call.rule, single, call.lse)
        if single is not result:
            put(result, single)
        return result

    def check_attend(self, storage: HostStorage, layer: int, q: Any, step: StepLike, **options: Any) -> None:
        """Raise what `attend` would raise for the same arguments, and do nothing else."""
        checked(self.name, storage, layer, q, step, **options)

    def merge(self, outs: Any, lses: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Return attention over the union of disjoint sets of keys.

        Parameters
        ----------
        outs : [parts, tokens, q_heads, v_head_dim]
            Attention over each part; what stands where a part shows no key does not matter.
        lses : float32 [parts, tokens, q_heads]
            Their natural lse; -inf where a part shows no key.

        Examples
        --------
        >>> ones = np.ones((1, 1, 1), np.float32)
        >>> out, lse = NumpyBackend().merge([ones * 2, ones * 4], [ones[0] * 0, ones[0] * 0])
        >>> out.item(), round(lse.item(), 4)
        (3.0, 0.6931)
        """
        parts, values, logs = parts_of(outs, lses)
        with np.errstate(all="ignore"):
            mean, lse = merged(widened(values), logs)
        out = np.empty(mean.shape, dtype_of_out(parts, values))
        put(out, mean)
        return out, lse

    def copy_blocks(self, storage: HostStorage, pairs: Any) -> None:
        """Copy blocks, pairs int32 [m, 2] (src, dst), in every plane; none is both src and dst."""
        moves.copy_blocks(storage, pairs)

    def copy_slots(self, storage: HostStorage, src: Any, dst: Any) -> None:
        """Copy int64 slots in every plane; every source is read before a destination is written."""
        moves.copy_slots(storage, src, dst)

    def read_blocks(
        self, storage: HostStorage, ids: Any, layers: Sequence[int] | None = None, into: Any = None
    ) -> npt.NDArray[np.uint8]:
        """Return records uint8 [ids, layers, spec.record_nbytes]: K, V, K scales, V scales; always NHD."""
        return moves.read_blocks(storage, ids, layers, into)

    def write_blocks(self, storage: HostStorage, ids: Any, data: Any, layers: Sequence[int] | None = None) -> None:
        """Store what read_blocks returned, whatever the layout it was read from."""
        moves.write_blocks(storage, ids, data, layers)

    def synchronize(self) -> None:
        """Do nothing: work is done when a call returns."""

    def fence(self) -> int:
        """Return 0: no work is ever outstanding."""
        return 0


if TYPE_CHECKING:
    _conforms: Backend = NumpyBackend()
    _checks: ChecksAttend = NumpyBackend()
