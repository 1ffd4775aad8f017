"""The backend as a whole, on whatever device its launcher has."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.cuda import _moves
from pagedcache.backends.cuda._call import checked_attend, checked_write, precision_of, slots_of, slots_of_step
from pagedcache.backends.cuda._kernels import HEAD_DIMS, STORED
from pagedcache.backends.cuda._launcher import Array, Launcher
from pagedcache.backends.cuda._workspace import Workspace
from pagedcache.backends.protocol import Capabilities, StepLike, Storage
from pagedcache.spec import CacheSpec

__all__ = ["KernelBackend"]

VARIANTS = ("window", "sink_tokens", "sink_logits", "softcap", "alibi", "mask")


class KernelBackend:
    """Attention in the CUDA kernels of this folder.

    Parameters
    ----------
    launcher : Launcher
        The device that runs them.

    Notes
    -----
    float16, bfloat16 and 8-bit storage is multiplied on tensor cores, with float32 sums and softmax; q and weights are
    rounded to the storage's type, or to float16 for 8 bits (`precision="native"`). float32 storage is computed in
    float32.
    """

    name: str

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.device = launcher.device
        self.capabilities = Capabilities(
            dtypes=frozenset(STORED),
            layouts=frozenset({"NHD", "HND"}),
            max_block_size=1024,
            head_dims=None,
            max_head_dim=HEAD_DIMS[-1],
            variants=frozenset(VARIANTS),
            precisions={dtype: precision_of(dtype) for dtype in STORED},
            synchronous=launcher.synchronous,
        )

    def allocate(self, spec: CacheSpec, num_blocks: int, buffers: Sequence[Sequence[Any]] | None = None) -> Storage:
        """Return a pool in own memory, all zero, or in the caller's buffers."""
        self.capabilities.require(spec)
        return self._launcher.allocate(spec, num_blocks, buffers)

    def write(self, storage: Any, layer: int, k: Any, v: Any, slots: Any) -> None:
        """Store new tokens, rounded to the storage's dtype; see the Backend protocol."""
        checked_write(self._launcher, storage, layer, k, v, slots_of(self._launcher, storage, slots)).run()

    def attend(self, storage: Any, layer: int, q: Any, step: StepLike | Workspace, **options: Any) -> Array:
        """Return causal attention of a ragged batch over its blocks.

        Parameters
        ----------
        q : float32, float16 or bfloat16 [tokens, q_heads, head_dim]
            Of the device. ``q_heads`` is a multiple of kv_heads.
        step : StepLike or Workspace
            Which sequences the tokens belong to, and their blocks.
        **options
            ``scale``, ``window``, ``sink_tokens``, ``sink_logits``, ``softcap``, ``alibi_slopes``, ``mask`` and
            ``mask_indptr``, ``precision``, ``out`` and ``lse``, as the Backend protocol has them.

        Returns
        -------
        [tokens, q_heads, v_head_dim]
            Of the device, in q's dtype. On a GPU it is filled when the stream gets there.

        Raises
        ------
        UnsupportedByBackend
            A precision other than the storage's own.
        ValueError, TypeError
            Arguments that do not fit; nothing was launched.
        """
        return checked_attend(self.name, self._launcher, storage, layer, q, step, **options).run()

    def check_attend(self, storage: Any, layer: int, q: Any, step: StepLike | Workspace, **options: Any) -> None:
        """Raise what `attend` would raise for the same arguments, and do nothing else."""
        checked_attend(self.name, self._launcher, storage, layer, q, step, **options)

    def write_and_attend(
        self, storage: Any, layer: int, q: Any, k: Any, v: Any, step: StepLike | Workspace, **options: Any
    ) -> Array:
        """Store new tokens at the step's slots, then attend; all arguments are checked before."""
        at = slots_of_step(self.name, self._launcher, storage, step, storage.spec.locate(layer)[0])
        call = checked_attend(self.name, self._launcher, storage, layer, q, step, **options)
        checked_write(self._launcher, storage, layer, k, v, at).run()
        return call.run()

    def workspace(
        self, storage: Any, q_heads: int, *, max_sequences: int, max_tokens: int, max_length: int, group: int = 0,
        window: int | None = None, sink_tokens: int = 0,
    ) -> Workspace:  # fmt: skip
        """Return room on the device for the schedules of steps up to a size, for CUDA graphs; see Workspace."""
        return Workspace(
            self._launcher, storage, q_heads, max_sequences=max_sequences, max_tokens=max_tokens,
            max_length=max_length, group=group, window=window, sink_tokens=sink_tokens,
        )  # fmt: skip

    def merge(self, outs: Any, lses: Any) -> tuple[Array, Array]:
        """Return attention over the union of disjoint sets of keys; see the Backend protocol."""
        return self._launcher.merge(outs, lses)

    def copy_blocks(self, storage: Any, pairs: Any) -> None:
        """Copy blocks, pairs int32 [m, 2] (src, dst), in every plane; none is both src and dst."""
        _moves.copy_blocks(self._launcher, storage, pairs)

    def copy_slots(self, storage: Any, src: Any, dst: Any) -> None:
        """Copy int64 slots in every plane; every source is read before a destination is written."""
        _moves.copy_slots(self._launcher, storage, src, dst)

    def read_blocks(
        self, storage: Any, ids: Any, layers: Sequence[int] | None = None, into: Any = None
    ) -> npt.NDArray[np.uint8]:
        """Return records uint8 [ids, layers, spec.record_nbytes] of the host: K, V, K scales, V scales; always NHD."""
        return _moves.read_blocks(self._launcher, storage, ids, layers, into)

    def write_blocks(self, storage: Any, ids: Any, data: Any, layers: Sequence[int] | None = None) -> None:
        """Store what read_blocks returned, whatever the layout it was read from."""
        _moves.write_blocks(self._launcher, storage, ids, data, layers)

    def synchronize(self) -> None:
        """Wait until all submitted work is done."""
        self._launcher.synchronize()

    def fence(self) -> int:
        """Return an increasing number that covers all work submitted so far; 0 is always done."""
        return self._launcher.fence()
