"""A backend whose work is done later, on command: asynchronous faults, shown on a CPU.

On a GPU a call returns before its work is done. Whoever reuses a block, or a host array, too early
gets wrong results, now and then. Here it is the test that says when work is done, so that each such
fault shows every time::

    backend = DelayedBackend()
    cache = KVCache(spec, num_blocks=8, backend=backend, steps_in_flight=2)
    ...                        # everything is queued
    backend.complete(3)        # the three oldest are done
    backend.synchronize()      # all are
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pagedcache.backends import Array, Backend, Storage, get
from pagedcache.backends.protocol import StepLike
from pagedcache.spec import CacheSpec
from pagedcache.testing._host_arrays import HostStep, held

__all__ = ["DelayedBackend", "Work"]


@dataclass
class Work:
    """How much was done, or is to be done."""

    calls: Counter[str] = field(default_factory=Counter)  # by method
    blocks_copied: int = 0  # pairs of copy_blocks
    bytes_moved: int = 0  # K, V and scales written, copied, read as records or stored from them

    def add(self, other: "Work") -> None:
        """Count other work too."""
        self.calls += other.calls
        self.blocks_copied += other.blocks_copied
        self.bytes_moved += other.bytes_moved


class DelayedBackend:
    """A queue in front of another backend: first in, first done, when the test says so.

    Parameters
    ----------
    inner : str or Backend
        What does the work in the end; synchronous.
    late_arguments : bool
        When arrays of the host (k, v, q, slots, the step's) are read: False, when a call is made, as
        by a backend that copies them aside; True, when its work is done, as from pinned memory. Then
        an array that is overwritten too early gives wrong results.

    Attributes
    ----------
    submitted, completed : Work
        Counters of all work, and of what is done.

    Notes
    -----
    Until its work is done, what attend, merge and read_blocks return is filled with NaN (bytes: 0xFF).
    Wrong arguments are refused when the call is made: each call is done at once on a second pool, whose
    results nobody sees. Work is done in the order of the calls, as on one CUDA stream, unless
    ``complete(only=...)`` lets some overtake.

    Examples
    --------
    >>> backend = DelayedBackend()
    >>> storage = backend.allocate(CacheSpec(1, 1, 2, block_size=4), num_blocks=3)
    >>> backend.write(storage, 0, np.ones((1, 1, 2), np.float32), np.ones((1, 1, 2), np.float32), [4])
    >>> backend.copy_blocks(storage, [(1, 2)])
    >>> backend.fence(), backend.completed_fence, float(storage.view(0)[0].sum())
    (2, 0, 0.0)
    >>> backend.complete(), float(storage.view(0)[0].sum())
    (1, 2.0)
    >>> backend.synchronize()
    >>> backend.completed_fence, float(storage.view(0)[0].sum()), backend.completed.blocks_copied
    (2, 4.0, 1)
    """

    name = "delayed"

    def __init__(self, inner: str | Backend = "numpy", *, late_arguments: bool = False) -> None:
        self._inner = get(inner)
        self.device = self._inner.device
        self.capabilities = replace(self._inner.capabilities, synchronous=False)
        self.late_arguments = late_arguments
        self.submitted = Work()
        self.completed = Work()
        self._fence = 0
        self._queue: list[_Call] = []
        self._lock = threading.RLock()  # a test may do work while another thread of the cache waits for it

    # -- time -------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Calls whose work is not done."""
        return len(self._queue)

    @property
    def completed_fence(self) -> int:
        """The work of all calls up to this fence is done."""
        return self._queue[0].fence - 1 if self._queue else self._fence

    def complete(self, calls: int | None = 1, *, only: str | None = None) -> int:
        """Do the work of the oldest calls (None: all), and return of how many.

        With `only`, the name of a method, its calls overtake the others, as on a stream of their own.
        """
        with self._lock:
            chosen = [call for call in self._queue if only in (None, call.method)][:calls]
            for call in chosen:
                call.work()
                self._queue.remove(call)
                self.completed.add(call.size)
        return len(chosen)

    def synchronize(self) -> None:
        """Do all work."""
        size = Work(Counter(synchronize=1))
        self.submitted.add(size)
        self.complete(None)
        self.completed.add(size)

    def fence(self) -> int:
        """Return how many calls were made so far; done once completed_fence has reached it."""
        return self._fence

    # -- work -------------------------------------------------------------------------------------

    def allocate(self, spec: CacheSpec, num_blocks: int, buffers: Sequence[Sequence[Array]] | None = None) -> Storage:
        """Return a pool, at once."""
        return _DelayedStorage(self, self._inner.allocate(spec, num_blocks, buffers), self._inner)

    def write(self, storage: "_DelayedStorage", layer: int, k: Array, v: Array, slots: Array) -> None:
        """Store new tokens, later."""
        self._inner.write(storage.trial, layer, k, v, slots)
        k, v, slots = self._host(k), self._host(v), self._host(slots)
        size = len(slots) * storage.spec.record_nbytes(layer) // storage.spec.block_size
        self._submit("write", partial(self._inner.write, storage.done, layer, k, v, slots), bytes_moved=size)

    def attend(
        self, storage: "_DelayedStorage", layer: int, q: Array, step: StepLike, *, out: Array | None = None,
        lse: Array | None = None, **options: Any
    ) -> Array:  # fmt: skip
        """Return an array that attention is computed into, later."""
        out = self._inner.attend(storage.trial, layer, q, step, out=out, lse=lse, **options)
        for result in (out, lse):
            if result is not None:
                result[...] = np.nan
        q, read = self._host(q), cast("StepLike", HostStep(step, storage.spec, self._host))
        options = {name: self._host(value) for name, value in options.items()}
        self._submit("attend", partial(self._inner.attend, storage.done, layer, q, read, out=out, lse=lse, **options))
        return out

    def check_attend(self, storage: "_DelayedStorage", layer: int, q: Array, step: StepLike, **options: Any) -> None:
        """Refuse what the backend behind would, at once, if it can tell."""
        if check := getattr(self._inner, "check_attend", None):
            check(storage.trial, layer, q, step, **options)

    def merge(self, outs: Array, lses: Array) -> tuple[Array, Array]:
        """Return arrays that attention over the union of keys is computed into, later.

        The arguments are results of earlier calls, so they are read when the work is done.
        """
        results = self._inner.merge(outs, lses)
        for result in results:
            result[...] = np.nan

        def work() -> None:
            for result, computed in zip(results, self._inner.merge(outs, lses), strict=True):
                result[...] = computed

        self._submit("merge", work)
        return results

    def copy_blocks(self, storage: "_DelayedStorage", pairs: Array) -> None:
        """Copy blocks, later."""
        self._inner.copy_blocks(storage.trial, pairs)
        pairs = self._host(pairs)
        size = len(pairs) * storage.spec.bytes_per_block
        self._submit(
            "copy_blocks",
            partial(self._inner.copy_blocks, storage.done, pairs),
            blocks_copied=len(pairs),
            bytes_moved=size,
        )

    def copy_slots(self, storage: "_DelayedStorage", src: Array, dst: Array) -> None:
        """Copy slots, later."""
        self._inner.copy_slots(storage.trial, src, dst)
        src, dst = self._host(src), self._host(dst)
        size = len(dst) * storage.spec.bytes_per_block // storage.spec.block_size
        self._submit("copy_slots", partial(self._inner.copy_slots, storage.done, src, dst), bytes_moved=size)

    def read_blocks(
        self, storage: "_DelayedStorage", ids: Array, layers: Sequence[int] | None = None, into: Array | None = None
    ) -> Array:
        """Return an array that records are read into, later: what the blocks hold then."""
        into = self._inner.read_blocks(storage.trial, ids, layers, into)
        into[...] = 0xFF
        ids = self._host(ids)
        self._submit(
            "read_blocks", partial(self._inner.read_blocks, storage.done, ids, layers, into), bytes_moved=into.nbytes
        )
        return into

    def write_blocks(
        self, storage: "_DelayedStorage", ids: Array, data: Array, layers: Sequence[int] | None = None
    ) -> None:
        """Store records, later."""
        self._inner.write_blocks(storage.trial, ids, data, layers)
        ids, data = self._host(ids), self._host(data)
        self._submit(
            "write_blocks", partial(self._inner.write_blocks, storage.done, ids, data, layers), bytes_moved=data.nbytes
        )

    def _host(self, array: Any) -> Any:
        return held(array, copy=not self.late_arguments)

    def _submit(self, method: str, work: Callable[[], Any], **size: int) -> None:
        amount = Work(Counter({method: 1}), **size)
        with self._lock:
            self.submitted.add(amount)
            self._fence += 1
            self._queue.append(_Call(self._fence, method, work, amount))


@dataclass(eq=False)
class _Call:
    fence: int
    method: str
    work: Callable[[], Any]
    size: Work


class _DelayedStorage:
    """The pool as its work is done, and a second one on which calls are tried."""

    def __init__(self, backend: DelayedBackend, done: Storage, inner: Backend) -> None:
        self._backend = backend
        self.done = done
        self.trial = inner.allocate(done.spec, done.num_blocks)
        self.spec, self.num_blocks, self.nbytes = done.spec, done.num_blocks, done.nbytes

    def view(self, layer: int) -> tuple[Array, Array]:
        return self.done.view(layer)

    def scales(self, layer: int) -> tuple[Array, Array] | None:
        return self.done.scales(layer)

    def export(self, writable: bool = False) -> list[tuple[Array, ...]]:
        return self.done.export(writable)

    def rebind(self, buffers: Sequence[Sequence[Array]]) -> None:
        self._backend.complete(None)  # what was queued is for the old buffers
        self.done.rebind(buffers)

    def close(self) -> None:
        self._backend.complete(None)
        self.done.close()
        self.trial.close()


if TYPE_CHECKING:
    from pagedcache.backends import ChecksAttend

    _conforms: Backend = DelayedBackend()
    _checks: ChecksAttend = DelayedBackend()
