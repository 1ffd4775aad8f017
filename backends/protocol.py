"""What a backend is: where the bytes of the cache live, and where attention is computed.

A backend knows layers, slots and block ids; it never decides who owns a block. Backends differ
in speed and device, never in meaning: ``pagedcache.testing.BackendConformance`` holds for each.
Any package can add one through the entry-point group ``pagedcache.backends``.

Words used below: ``tokens`` are the new tokens of a step, all sequences one after the other;
a slot is ``block_id * block_size + offset``; block 0 is reserved and always zero.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from pagedcache.backends._capabilities import Capabilities
from pagedcache.backends._registry import get, names
from pagedcache.backends._step_like import StepLike
from pagedcache.spec import CacheSpec

__all__ = [
    "Array",
    "Backend",
    "Capabilities",
    "ChecksAttend",
    "HasThreads",
    "StepLike",
    "Storage",
    "WritesAndAttends",
    "get",
    "names",
]

Array: TypeAlias = Any  # an array of the backend's device; NumPy arrays for CPU backends
OwnStorage: TypeAlias = Any  # a Storage that this backend's allocate returned


class Storage(Protocol):
    """K and V of every block, as a backend allocated them or took them from the caller."""

    spec: CacheSpec
    num_blocks: int  # usable ones, ids 1 to num_blocks
    nbytes: int  # spec.pool_nbytes(num_blocks)

    def view(self, layer: int) -> tuple[Array, Array]:
        """K and V arrays of `layer`, spec.key_shape and spec.value_shape, of spec.storage_dtype."""

    def scales(self, layer: int) -> tuple[Array, Array] | None:
        """float32 scales of K and of V, spec.scale_shape; None where the dtype has none."""

    def export(self, writable: bool = False) -> list[tuple[Array, ...]]:
        """One (K, V) or (K, V, K scales, V scales) per plane; the caller now minds who may write."""

    def rebind(self, buffers: Sequence[Sequence[Array]]) -> None:
        """Replace the caller's buffers, given as export returns them, by others."""

    def close(self) -> None:
        """Give the memory back; ViewsOutstanding while an array of it is in use."""


@runtime_checkable
class Backend(Protocol):
    """Writes, reads and moves K/V, and computes attention over it.

    Arguments are validated before anything is written: a call that raises has changed nothing.
    """

    name: str
    device: str
    capabilities: Capabilities

    # fmt: off
    def allocate(self, spec: CacheSpec, num_blocks: int, buffers: Sequence[Sequence[Array]] | None = None) -> Storage:
        """Own memory, all zero; or the caller's `buffers`, one (K, V[, scales]) per plane."""

    def write(self, storage: OwnStorage, layer: int, k: Array, v: Array, slots: Array) -> None:
        """Store k [tokens, kv_heads, head_dim] and v [tokens, kv_heads, v_head_dim] at int64 slots,
        rounded to nearest, ties to even. int8 and float8_e4m3: per token and head, scale = absmax / 127
        (448), 1 where that is 0, and x / scale is stored; all in float32."""

    def attend(self, storage: OwnStorage, layer: int, q: Array, step: StepLike, *, scale: float | None = None,
               window: int | None = None, sink_tokens: int = 0, sink_logits: Array | None = None,
               softcap: float | None = None, alibi_slopes: Array | None = None, mask: Array | None = None,
               mask_indptr: Array | None = None, precision: str | None = None, out: Array | None = None,
               lse: Array | None = None) -> Array:
        """Attention of q [tokens, q_heads, head_dim]: out [tokens, q_heads, v_head_dim]; lse float32
        [tokens, q_heads], natural log of the softmax's denominator, is filled where given.

        A score is ``scale * q . k``, then ``softcap * tanh(score / softcap)``, then plus
        ``alibi_slopes[head] * (position of k - position of q)``; then comes what is visible, as
        StepLike has it. The denominator is the sum of exp(score), plus ``exp(sink_logits[head])``:
        lse counts the sink logit too, so that parts of which one had it merge rightly. No visible
        key: 0 and -inf (with sink logits: 0 and the logit).

        ``scale``, ``softcap``, 1 / ``softcap``, ``scale / softcap`` and the numbers of ``sink_logits`` (or
        -inf) and ``alibi_slopes``, float [q_heads], are at most 1e28 in size. ``mask``: uint8, the bits
        [q_len, q_len] of each sequence, row after row (query, new token), lowest bit first, filled up to
        whole bytes; those of sequence s are ``mask[mask_indptr[s]:mask_indptr[s + 1]]``, int64 [n + 1]. An empty
        span means causal. Older tokens are visible to all. A variant that capabilities leave out,
        and a `precision` that the backend lacks, raise UnsupportedByBackend."""

    def merge(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        """Attention over disjoint sets of keys, stacked on axis 0, as if over their union. A part with
        lse -inf counts for nothing, whatever its out holds; where all have it: 0 and -inf."""

    def copy_blocks(self, storage: OwnStorage, pairs: Array) -> None:
        """Copy blocks in every plane, pairs int32 [m, 2] (src, dst); none is both src and dst."""

    def copy_slots(self, storage: OwnStorage, src: Array, dst: Array) -> None:
        """Copy int64 slots in every plane; every source is read before a destination is written."""

    def read_blocks(self, storage: OwnStorage, ids: Array, layers: Sequence[int] | None = None,
                    into: Array | None = None) -> Array:
        """Records uint8 [ids, layers, spec.record_nbytes]: K, V, K scales, V scales; always NHD. By default of
        spec.kv_layers."""

    def write_blocks(self, storage: OwnStorage, ids: Array, data: Array, layers: Sequence[int] | None = None) -> None:
        """Store what read_blocks returned, whatever the layout it was read from."""
    # fmt: on

    def synchronize(self) -> None:
        """Wait until all submitted work is done."""

    def fence(self) -> int:
        """An increasing int64 that covers all work submitted so far; 0 is always done."""


class ChecksAttend(Protocol):
    """What a Backend may have besides: the refusals of attend, asked for alone.

    KVCache.attend asks before it writes, so that a refused call has stored nothing. With a backend that
    lacks it, such a call may have stored the K/V of its own new tokens, which do not count before commit.
    """

    def check_attend(self, storage: OwnStorage, layer: int, q: Array, step: StepLike, **options: Any) -> None:
        """Raise what attend would raise for the same arguments; read no K/V and write nothing, `out` and
        `lse` neither."""


class WritesAndAttends(Protocol):
    """What a Backend may have besides: write and attend in one call, for less overhead in each layer."""

    def write_and_attend(
        self, storage: OwnStorage, layer: int, q: Array, k: Array, v: Array, step: StepLike, **options: Any
    ) -> Array:
        """What write at the slots of the layer's group in the step, then attend, would do and return; but
        all arguments are checked before anything is written."""


@runtime_checkable
class HasThreads(Protocol):
    """What a Backend may have besides: threads of its own, a number of them that a user can set."""

    threads: int  # at most, in a call

    def with_threads(self, threads: int) -> Backend:
        """A backend of this kind with so many; this one stays as it is."""
