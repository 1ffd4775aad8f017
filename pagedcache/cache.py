"""KVCache: block tables and a backend's storage together, which is what most users hold.

The SequenceTable decides who owns which block and moves no byte; the backend holds the bytes and
knows no sequence. This class is the seam: it moves bytes where the table says so (copies of a step,
accepted tokens, swaps), hands arrays through, and serialises callers with one lock.
"""

import os
import threading
import weakref
from collections.abc import Sequence as ABCSequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from numpy.typing import ArrayLike

from pagedcache._residency import Residency
from pagedcache.backends import Backend, Storage, get
from pagedcache.core import BlockPool, EvictionPolicy, SequenceTable, Step
from pagedcache.errors import ViewsOutstanding
from pagedcache.spec import CacheSpec

__all__ = ["KVCache"]

_ALL: "weakref.WeakSet[KVCache]" = weakref.WeakSet()


def _fresh_locks() -> None:
    """A forked child has one thread, and locks that others held at the fork are free there."""
    for cache in _ALL:
        cache._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_locks)

Buffers = ABCSequence[ABCSequence[Any]]


class KVCache(Residency):
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
        Where the bytes live and attention is computed; ``pagedcache.backends.names()`` lists them.
    storage : None, "metadata" or buffers
        None: memory of the library. ``"metadata"``: none at all, where a framework owns the pool; the
        caller then applies ``step.copies`` before layer 0. Else per plane one ``(k, v)`` pair of arrays,
        for int8 and float8_e4m3 ``(k, v, k_scales, v_scales)``, with a row for the zero block.
    max_sequences : int
        Live sequences at a time.
    max_length : int, optional
        Most positions of one sequence; by default what the pool can hold.
    steps_in_flight : int, optional
        Open steps at a time, 1 to 8; by default 1, or 2 where the backend works asynchronously.
    threads : int, optional
        Threads of the backend's kernels; the NumPy backend leaves them to BLAS and accepts only None.
    policy : EvictionPolicy, optional
        Which cached block gives way first: `LRU` (the default), or a `PriorityTTL`.
    events : {None, "digests", "tokens"}
        Whether to record what the prefix cache stores and removes, for `events`; with token ids or without.

    Raises
    ------
    UnsupportedByBackend
        The backend lacks what the spec asks for.
    NotImplementedError
        The spec has several layer groups or a sliding window.

    Notes
    -----
    Every token of every layer is kept: there is one group of full attention. Calls from several threads are
    safe: they run one after the other.

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
        backend: str | Backend = "numpy",
        storage: Literal["metadata"] | Buffers | None = None,
        max_sequences: int = 256,
        max_length: int | None = None,
        steps_in_flight: int | None = None,
        threads: int | None = None,
        policy: EvictionPolicy | None = None,
        events: Literal["digests", "tokens"] | None = None,
    ) -> None:
        if not isinstance(spec, CacheSpec):
            raise TypeError(f"spec must be a CacheSpec, not {type(spec).__name__}")
        if (memory is None) == (num_blocks is None):
            raise ValueError("give either memory= (a budget such as '512 MiB') or num_blocks=, and not both")
        if len(spec.groups) != 1 or spec.groups[0].kind != "full":
            raise NotImplementedError("a KVCache has one group of full-attention layers; others are not built yet")
        if threads is not None:
            raise NotImplementedError(f"threads is {threads}; the NumPy backend leaves threads to BLAS (threadpoolctl)")
        self.spec = spec
        self.backend: Backend = get(backend)
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
            events=events,
            fingerprint=spec.fingerprint or b"",
        )
        self.storage: Storage | None = None
        if isinstance(storage, str) and storage != "metadata":
            raise ValueError(f"storage is {storage!r}; it is None, 'metadata' or one (k, v) pair of arrays per plane")
        if not isinstance(storage, str):
            self.storage = self.backend.allocate(spec, self.pool.num_blocks, storage)
        self._swapped = {}
        self._lock = threading.RLock()
        self._closed = False
        _ALL.add(self)

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

        Raises
        ------
        ViewsOutstanding
            Arrays of the storage are still in use; nothing was closed.
        """
        with self._lock:
            if self.storage is not None and not self._closed:
                self.storage.close()
            self._closed = True
            self._swapped.clear()

    @property
    def num_blocks(self) -> int:
        """Usable blocks."""
        return self.pool.num_blocks

    # -- one step ---------------------------------------------------------------------------------

    def extend(self, ids: ArrayLike, counts: int | ArrayLike, *, depths: Any = None, cascade: bool = False) -> Step:
        """Open a step: slots for new tokens of each sequence, copies already made; see `SequenceTable.extend`."""
        with self._open():
            step = self.sequences.extend(ids, counts, depths=depths, cascade=cascade)
            if self.storage is not None and len(step.copies):
                try:
                    self.backend.copy_blocks(self.storage, step.copies)
                except BaseException:
                    self._cover()
                    self.sequences.abandon(step)
                    raise
            return step

    def attend(
        self,
        layer: int,
        q: Any,
        k: Any,
        v: Any,
        step: Step,
        *,
        scale: float | None = None,
        sink_logits: Any = None,
        softcap: float | None = None,
        alibi_slopes: Any = None,
        mask: Any = None,
        mask_indptr: Any = None,
        precision: str | None = None,
        out: Any = None,
        lse: Any = None,
    ) -> Any:
        """Write K/V of the step's new tokens into one layer, then attend over all that is visible.

        Parameters
        ----------
        layer : int
        q : [tokens, q_heads, head_dim]
            Queries of the step's tokens, in step order; ``q_heads`` a multiple of the spec's kv_heads.
        k, v : [tokens, kv_heads, head_dim] and [tokens, kv_heads, v_head_dim], or both None
            None: K/V are there already, only read. Finite where the storage has scales (int8, float8_e4m3).
            float32, float16 or bfloat16 as ml_dtypes or, in a bfloat16 cache, uint16; like q.
        step : Step
            The open step, from `extend`; or, to read only, a Step.from_arrays over this cache's storage.
        scale : float, optional
            Factor on the scores; ``head_dim ** -0.5`` by default.
        sink_logits : float [q_heads], optional
            The softmax's denominator gets ``exp(sink_logits[head])`` more; -inf for none.
        softcap : float, optional
            Scores become ``softcap * tanh(score / softcap)``.
        alibi_slopes : float [q_heads], optional
            Added then: ``alibi_slopes[head] * (position of the key - position of the query)``.
        mask, mask_indptr : uint8 [bytes] and int64 [n + 1], optional
            Which new tokens each new token sees, instead of all before it: of each sequence the bits
            [q_len, q_len], lowest bit first, from byte ``mask_indptr[s]`` on. An empty span means causal.
        precision : {None, "exact", "native"}
            "native" lets a backend round q and weights to the storage type; by default what its
            capabilities say. The NumPy backend is exact.
        out : [tokens, q_heads, v_head_dim], optional
            Written in place; of q's dtype or float32.
        lse : float32 [tokens, q_heads], optional
            Filled with the natural log of each softmax's denominator, sink logits included.

        Returns
        -------
        [tokens, q_heads, v_head_dim]
            In q's dtype (float32 where q is uint16); 0 where a query sees no key.

        Raises
        ------
        UnsupportedByBackend
            The backend lacks a variant or the precision.
        ValueError, TypeError
            Arguments that do not fit, a step of another cache, or a cache that is metadata only.
        StepClosed
            The step was committed or abandoned.

        Notes
        -----
        K/V is stored first. Where q or another argument is then refused, the K/V of the step's own new
        tokens may be there already; it does not count before `commit`, and a repeated call writes it anew.
        """
        with self._open():
            if self.storage is None:
                raise ValueError("the cache is metadata only (storage='metadata'): its owner computes attention")
            if (k is None) != (v is None):
                raise ValueError("give both k and v, or neither (None: only read)")
            if not isinstance(step, Step):
                raise TypeError(f"step must be a Step, not {type(step).__name__}")
            if step.owner is not self.sequences and (step.owner is not None or k is not None):
                raise ValueError(
                    "the step is another cache's"
                    if step.owner is not None
                    else "a step from arrays may only read (k and v None): its slots could be anyone's"
                )
            if k is not None:
                self.backend.write(self.storage, layer, k, v, step.slots)
            try:
                return self.backend.attend(
                    self.storage,
                    layer,
                    q,
                    step,
                    scale=scale,
                    sink_logits=sink_logits,
                    softcap=softcap,
                    alibi_slopes=alibi_slopes,
                    mask=mask,
                    mask_indptr=mask_indptr,
                    precision=precision,
                    out=out,
                    lse=lse,
                )
            finally:
                if step.owner is None:  # others are covered when they close
                    self._cover()

    def commit(self, step: Step, tokens: ArrayLike | None, accepted: ABCSequence[ArrayLike] | None = None) -> int:
        """Close the oldest step and publish its full blocks; see `SequenceTable.commit`.

        K/V of accepted tokens moves to where the tokens stand from then on; with metadata-only storage
        the caller has moved it, as ``step.moves(accepted)`` says.
        """
        with self._open():
            if accepted is not None and self.storage is not None:
                self.sequences.check_commit(step, tokens, accepted)
                src, dst = step.moves(accepted)
                if len(src):
                    self.backend.copy_slots(self.storage, src, dst)
            self._cover()
            return self.sequences.commit(step, tokens, accepted)

    def abandon(self, step: Step) -> None:
        """Close the newest step as if it never was; see `SequenceTable.abandon`."""
        with self._open():
            self._cover()
            self.sequences.abandon(step)
