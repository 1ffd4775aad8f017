"""KVCache: block tables and a backend's storage together, which is what most users hold.

The SequenceTable decides who owns which block and moves no byte; the backend holds the bytes and
knows no sequence. This class is the seam: it moves bytes where the table says so (copies of a step,
accepted tokens, swaps), hands arrays through, and serialises callers with one lock. Here it is made
and closed; its verbs are those of its bases.
"""

import os
import threading
import weakref
from collections.abc import Sequence as ABCSequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from pagedcache._saving import Saving
from pagedcache._sight import sights_of
from pagedcache.backends import Backend, HasThreads, Storage, get
from pagedcache.core import BlockPool, EvictionPolicy, SequenceTable
from pagedcache.errors import UnsupportedByBackend, ViewsOutstanding
from pagedcache.spec import CacheSpec

if TYPE_CHECKING:
    from pagedcache._tier_set import TierSet
    from pagedcache.tiers import Tier

__all__ = ["KVCache"]

_ALL: "weakref.WeakSet[KVCache]" = weakref.WeakSet()


def _fresh_locks() -> None:
    """A forked child has one thread, and locks that others held at the fork are free there."""
    for cache in _ALL:
        cache._lock, cache._closing = threading.RLock(), threading.RLock()
        cache._lose_tiers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_locks)

Buffers = ABCSequence[ABCSequence[Any]]


def _with_threads(backend: Backend, threads: int | None) -> Backend:
    if threads is None:
        return backend
    if not isinstance(backend, HasThreads):
        raise UnsupportedByBackend(
            f"threads is {threads}; backend {backend.name!r} has none of its own: leave it out (threads of BLAS are "
            "set with threadpoolctl or OPENBLAS_NUM_THREADS)"
        )
    return backend.with_threads(threads)


class KVCache(Saving):
    """Keys and values of many sequences in fixed-size blocks, and attention over them.

    Parameters
    ----------
    spec : CacheSpec
        Layers, heads, dtype and block size.
    memory : int or str, optional
        Budget for K/V, bytes or text such as ``"512 MiB"``; the reserved zero block is within it.
    num_blocks : int, optional
        Usable blocks, instead of a budget. One of the two is required.
    backend : str or Backend
        Where the bytes live and attention is computed: ``"cpu"``, in native kernels, ``"numpy"``, in
        readable NumPy, or another of ``pagedcache.backends.names()``.
    storage : None, "metadata" or buffers
        None: memory of the library, compact and aligned to 64 bytes. ``"metadata"``: none at all, where a
        framework owns the pool. The caller then copies blocks as ``step.copies`` says before layer 0, slots as
        ``step.moves(accepted)`` says before ``commit``, and what ``sequences.swap_list`` and ``compaction`` name;
        nothing else moves bytes. Else per plane one ``(k, v)`` pair of arrays, for int8 and float8_e4m3 ``(k, v,
        k_scales, v_scales)``, with a row for the zero block: of NumPy or any library whose memory may be written,
        see `pagedcache.exchange`. They are asked for it once, and kept alive.
    max_sequences : int
        Live sequences at a time.
    max_length : int, optional
        Most positions of one sequence; by default what the pool can hold.
    steps_in_flight : int, optional
        Open steps at a time, 1 to 8; by default 1, or 2 where the backend works asynchronously.
    threads : int, optional
        Most threads of a call of attend, and of copies; by default what the backend takes: ``cpu`` one per
        processor, or as the environment variable PAGEDCACHE_NUM_THREADS says. Results do not depend on it.
        The backend ``numpy`` has none of its own and accepts only None.
    policy : EvictionPolicy, optional
        Which cached block gives way first: `LRU` (the default), `LFUDA`, `ARC`, `S3FIFO`, `NeverHitFirst`,
        `PriorityTTL` or `NamespaceQuotas`.
    max_pinned : int, optional
        Most blocks that all pins together hold; by default half of the pool.
    events : {None, "digests", "tokens"}
        Whether to record what the prefix cache stores and removes, for `events`; with token ids or without.
    tiers : sequence of Tier, optional
        Slower places for cached blocks, the fastest first; see `pagedcache.tiers`. The spec needs a fingerprint. The
        cache closes them when it is closed.

    Raises
    ------
    UnsupportedByBackend
        The backend lacks what the spec asks for, or has no threads to set.
    NotImplementedError
        The first layer group of the spec is not one of full attention.

    Notes
    -----
    Layers of a windowed group see only what their window shows, and blocks behind it are given back while the
    sequence runs. With state groups no prefix is found: the state behind it is not kept. Calls from several threads
    are safe: they run one after the other.

    Examples
    --------
    >>> import numpy as np
    >>> from pagedcache import CacheSpec, KVCache
    >>> cache = KVCache(CacheSpec(layers=1, kv_heads=2, head_dim=8, block_size=4), num_blocks=16)
    >>> prompt = [3, 1, 4, 1, 5]
    >>> ids = cache.admit([prompt]).ids
    >>> step = cache.extend(ids, [5])
    >>> kv = np.ones((5, 2, 8), np.float32)
    >>> cache.attend(0, np.ones((5, 4, 8), np.float32), kv, kv, step).shape
    (5, 4, 8)
    >>> cache.commit(step, prompt)
    1
    >>> cache.release(ids)
    2
    """

    def __init__(
        self,
        spec: CacheSpec,
        *,
        memory: int | str | None = None,
        num_blocks: int | None = None,
        backend: str | Backend = "cpu",
        storage: Literal["metadata"] | Buffers | None = None,
        max_sequences: int = 256,
        max_length: int | None = None,
        steps_in_flight: int | None = None,
        threads: int | None = None,
        policy: EvictionPolicy | None = None,
        max_pinned: int | None = None,
        events: Literal["digests", "tokens"] | None = None,
        tiers: "ABCSequence[Tier]" = (),
    ) -> None:
        if not isinstance(spec, CacheSpec):
            raise TypeError(f"spec must be a CacheSpec, not {type(spec).__name__}")
        if (memory is None) == (num_blocks is None):
            raise ValueError("give either memory= (a budget such as '512 MiB') or num_blocks=, and not both")
        if spec.groups[0].kind != "full":
            raise NotImplementedError(
                f"the first group, {spec.groups[0].name!r}, is of kind {spec.groups[0].kind!r}; a KVCache needs a full "
                "one there, whose blocks tell what prefix a sequence has"
            )
        self.spec = spec
        self.backend: Backend = _with_threads(get(backend), threads)
        self.backend.capabilities.require(spec)
        if memory is not None:
            num_blocks = spec.blocks_for(memory)
        if steps_in_flight is None:
            steps_in_flight = 1 if self.backend.capabilities.synchronous else 2
        self.pool = BlockPool(num_blocks, policy)
        self.sequences = SequenceTable(
            self.pool,
            spec.block_size,
            max_sequences=max_sequences,
            max_length=max_length,
            steps_in_flight=steps_in_flight,
            events=events or ("digests" if tiers else None),
            max_pinned=max_pinned,
            fingerprint=spec.fingerprint or b"",
            side_groups=[(g.window, g.sink_tokens, g.kind == "chunked_local") for g in spec.kv_groups[1:]],
            max_step_tokens=spec.max_step_tokens,
            state_blocks=spec.state_blocks,
        )
        self._sights = sights_of(spec)
        self.storage: Storage | None = None
        if isinstance(storage, str) and storage != "metadata":
            raise ValueError(f"storage is {storage!r}; it is None, 'metadata' or one (k, v) pair of arrays per plane")
        if not isinstance(storage, str):
            self.storage = self.backend.allocate(spec, self.pool.num_blocks, storage)
        self._swapped = {}
        self._told = None if events is None else []
        self._layer_loads = []
        self._tiers = self._with_tiers(tiers)
        self._lock, self._closing = threading.RLock(), threading.RLock()
        self._closed = False
        _ALL.add(self)

    def _with_tiers(self, tiers: "ABCSequence[Tier]") -> "TierSet | None":
        if not tiers:
            return None
        from pagedcache._tier_set import TierSet

        if self.storage is None:
            raise ValueError("the cache is metadata only, so it has no bytes for tiers: leave tiers= out")
        return TierSet(self, tiers)

    # -- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An exception on its way keeps arrays alive in its frames; it must not be replaced by that.
        with suppress(*([ViewsOutstanding] if kind is not None else [])):
            self.close()

    def __repr__(self) -> str:
        if self._closed:
            return "KVCache(closed)"
        return (
            f"KVCache({self.num_blocks} blocks of {self.spec.block_size} tokens, {self.pool.num_used} used, "
            f"{self.pool.num_cached} cached, backend {self.backend.name!r})"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a KVCache cannot be pickled or copied: make one per process, or fork() its sequences")

    def close(self) -> None:
        """Give the memory back; closing twice is harmless. Verbs raise CacheClosed from then on.

        What is on its way to tiers is stored first, and the tiers are closed.

        Raises
        ------
        ViewsOutstanding
            Arrays of the storage are still in use; but for its tiers, nothing was closed.
        OSError
            A tier failed to close; everything else was closed.
        """
        with self._closing:  # who closes too waits, as bytes are still being read and written
            try:
                if self._tiers is not None:
                    self._tiers.close()  # told of what other threads do until then, so that it stores nothing wrong
            finally:
                with self._lock:
                    self._tiers = None
                    if self.storage is not None and not self._closed:
                        self.storage.close()
                    self._closed = True
                    self._swapped.clear()
                    self._room.clear()

    @property
    def num_blocks(self) -> int:
        """Usable blocks."""
        return self.pool.num_blocks
