"""KVCache: block tables and a backend's storage together, which is what most users hold.

The SequenceTable decides who owns which block and moves no byte; the backend holds the bytes and
knows no sequence. This class is the seam: it applies the copies that a step asks for, hands arrays
through, and serialises callers with one lock.
"""

import os
import threading
import weakref
from collections.abc import Sequence as ABCSequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.backends import Backend, Storage, get
from pagedcache.core import Admission, BlockPool, CacheStats, SequenceTable, Step
from pagedcache.errors import CacheClosed, ViewsOutstanding
from pagedcache.sequence import Sequence
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


class KVCache:
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
        caller then applies ``step.copies`` before layer 0. Else one ``(k, v)`` pair of arrays per plane.
    max_sequences : int
        Live sequences at a time.
    max_length : int, optional
        Most positions of one sequence; by default what the pool can hold.
    steps_in_flight : int, optional
        Open steps at a time; 1 in this release.
    threads : int, optional
        Threads of the backend's kernels; the NumPy backend leaves them to BLAS and accepts only None.

    Raises
    ------
    UnsupportedByBackend
        The backend lacks what the spec asks for.

    Notes
    -----
    Calls from several threads are safe: they run one after the other.

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
    ) -> None:
        if not isinstance(spec, CacheSpec):
            raise TypeError(f"spec must be a CacheSpec, not {type(spec).__name__}")
        if (memory is None) == (num_blocks is None):
            raise ValueError("give either memory= (a budget such as '512 MiB') or num_blocks=, and not both")
        if len(spec.groups) != 1 or spec.groups[0].kind != "full":
            raise NotImplementedError("a KVCache has one group of full-attention layers; others are not built yet")
        if steps_in_flight not in (None, 1):
            raise NotImplementedError(f"steps_in_flight is {steps_in_flight}; only 1 is built yet")
        if threads is not None:
            raise NotImplementedError(f"threads is {threads}; the NumPy backend leaves threads to BLAS (threadpoolctl)")
        self.spec = spec
        self.backend: Backend = get(backend)
        self.backend.capabilities.require(spec)
        if memory is not None:
            num_blocks = spec.blocks_for(memory)
        self.pool = BlockPool(num_blocks)
        self.sequences = SequenceTable(self.pool, spec.block_size, max_sequences=max_sequences, max_length=max_length)
        self.storage: Storage | None = None
        if isinstance(storage, str) and storage != "metadata":
            raise ValueError(f"storage is {storage!r}; it is None, 'metadata' or one (k, v) pair of arrays per plane")
        if not isinstance(storage, str):
            self.storage = self.backend.allocate(spec, self.pool.num_blocks, storage)
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
        """Give the memory back. Every other call raises CacheClosed from then on.

        Raises
        ------
        ViewsOutstanding
            Arrays of the storage are still in use; nothing was closed.
        """
        with self._lock:
            if self.storage is not None and not self._closed:
                self.storage.close()
            self._closed = True

    @property
    def num_blocks(self) -> int:
        """Usable blocks."""
        return self.pool.num_blocks

    # -- one step ---------------------------------------------------------------------------------

    def admit(
        self,
        prompts: ABCSequence[ArrayLike] | NDArray[np.integer[Any]],
        *,
        namespace: bytes | str | None = None,
        keys: Any = None,
        reserve: int | ArrayLike = 0,
        pads: ArrayLike | None = None,
    ) -> Admission:
        """Match, pin and allot, prompt by prompt; see `SequenceTable.admit`."""
        with self._open():
            return self.sequences.admit(prompts, namespace=namespace, keys=keys, reserve=reserve, pads=pads)

    def extend(self, ids: ArrayLike, counts: int | ArrayLike, *, depths: Any = None, cascade: bool = False) -> Step:
        """Slots for new tokens, and the copies they need, done; see `SequenceTable.extend`."""
        with self._open():
            step = self.sequences.extend(ids, counts, depths=depths, cascade=cascade)
            if self.storage is not None and len(step.copies):
                try:
                    self.backend.copy_blocks(self.storage, step.copies)
                except BaseException:
                    self.sequences.abandon(step)
                    raise
            return step

    @property
    def open_steps(self) -> tuple[Step, ...]:
        """Steps neither committed nor abandoned, for whoever has lost one."""
        with self._open():
            return self.sequences.open_steps

    def can_extend(self, ids: ArrayLike, counts: int | ArrayLike, *, depths: Any = None, cascade: bool = False) -> bool:
        """Whether `extend` with the same arguments would find enough blocks now."""
        with self._open():
            return self.sequences.can_extend(ids, counts, depths=depths, cascade=cascade)

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
            None: K/V are there already, only read.
        step : Step
            The open step, from `extend`; or, to read only, a Step.from_arrays over this cache's storage.
        scale : float, optional
            Factor on the scores; ``head_dim ** -0.5`` by default.
        out, lse : arrays, optional
            Written in place: [tokens, q_heads, v_head_dim], and float32 [tokens, q_heads] natural-log sums.

        Returns
        -------
        [tokens, q_heads, v_head_dim]
            In q's dtype; 0 where a query sees no key.

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

    def commit(self, step: Step, tokens: ArrayLike | None, accepted: Any = None) -> int:
        """Close the step and publish its full blocks; see `SequenceTable.commit`."""
        with self._open():
            return self.sequences.commit(step, tokens, accepted)

    def abandon(self, step: Step) -> None:
        """Close the step as if it never was; see `SequenceTable.abandon`."""
        with self._open():
            self.sequences.abandon(step)

    # -- whole sequences --------------------------------------------------------------------------

    def fork(self, ids: ArrayLike, n: int = 1, at: int | ArrayLike | None = None) -> NDArray[np.int64]:
        """`n` new sequences per id that share its blocks; see `SequenceTable.fork`."""
        with self._open():
            return self.sequences.fork(ids, n, at)

    def truncate(self, ids: ArrayLike, positions: int | ArrayLike) -> int:
        """Roll back; the number of blocks that became usable. See `SequenceTable.truncate`."""
        with self._open():
            return self.sequences.truncate(ids, positions)

    def release(self, ids: ArrayLike) -> int:
        """Let sequences go; the number of blocks usable now for it. See `SequenceTable.release`."""
        with self._open():
            return self.sequences.release(ids)

    def match(
        self, prompts: ABCSequence[ArrayLike], *, namespace: bytes | str | None = None, keys: Any = None
    ) -> NDArray[np.int32]:
        """Leading tokens of each prompt that are cached; changes nothing. See `SequenceTable.match`."""
        with self._open():
            return self.sequences.match(prompts, namespace=namespace, keys=keys)

    def sequence(self, handle: int) -> Sequence:
        """A look at one sequence: its length, position and block table."""
        with self._open():
            self.sequences.position(handle)
            return Sequence(self.sequences, int(handle))

    def stats(self) -> CacheStats:
        """Counters and sizes, as a snapshot."""
        with self._open():
            return self.sequences.stats()

    def check(self) -> None:
        """Audit every invariant of the bookkeeping; AssertionError names the first that is broken."""
        with self._open():
            self.sequences.check()

    # -- signatures that are final, work that is not there yet --------------------------------------

    def reorder(self, ids: ArrayLike, parents: ArrayLike) -> None:
        """Beam step: sequence i goes on from ``ids[parents[i]]``. Not built yet."""
        self.sequences.reorder(ids, parents)

    def retire(self, fence: int) -> int:
        """Free what waited for `fence`. Not built yet: every drop is immediate."""
        return self.sequences.retire(fence)

    def pin(
        self, prompts: ABCSequence[ArrayLike], name: str, *, namespace: bytes | str | None = None, keys: Any = None
    ) -> int:
        """Keep the published blocks of `prompts` from eviction. Not built yet."""
        return self.sequences.pin(prompts, name, namespace=namespace, keys=keys)

    def unpin(self, name: str) -> int:
        """Undo `pin`. Not built yet."""
        return self.sequences.unpin(name)

    def evict(self, n_blocks: int) -> int:
        """Give up idle cached blocks. Not built yet."""
        return self.sequences.evict(n_blocks)

    def reset(self) -> int:
        """Forget the whole prefix cache. Not built yet."""
        return self.sequences.reset()

    def invalidate(self, *, namespace: bytes | str) -> int:
        """Forget what a namespace has published. Not built yet."""
        return self.sequences.invalidate(namespace=namespace)

    def swap_out(self, ids: ArrayLike) -> int:
        """Move blocks that only these sequences hold to another tier. Not built yet."""
        return self.sequences.swap_out(ids)

    def swap_in(self, ids: ArrayLike) -> int:
        """Undo `swap_out`. Not built yet."""
        return self.sequences.swap_in(ids)

    def compact(self) -> int:
        """Renumber blocks so that tables run on. Not built yet."""
        return self.sequences.compact()

    def events(self) -> NDArray[Any]:
        """Drain the record of stored and removed blocks. Not built yet."""
        return self.sequences.events()

    def _open(self) -> AbstractContextManager[Any]:
        if self._closed:
            raise CacheClosed("the cache is closed; make a new one")
        return self._lock
