"""The verbs of KVCache that make one step: extend, attend, commit or abandon, and the bytes that they move."""

from collections.abc import Sequence as ABCSequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pagedcache._chunks import ChunkedStep
from pagedcache._sight import Sight
from pagedcache._tiering import Tiering
from pagedcache.core import Step

__all__ = ["Stepping"]


class Stepping(Tiering):
    """Base of KVCache: a step from its opening to its end."""

    _sights: list[Sight] | None  # by layer; None where all are of one full group

    def extend(self, ids: ArrayLike, counts: int | ArrayLike, *, depths: Any = None, cascade: bool = False) -> Step:
        """Open a step: slots for new tokens of each sequence, copies already made; see `SequenceTable.extend`."""
        with self._open():
            step = self.sequences.extend(ids, counts, depths=depths, cascade=cascade)
            if self.storage is None:
                return step
            self._settle()
            copies = step.copies if self._sights is None else np.concatenate([g.copies for g in step.groups])
            if len(copies):
                try:
                    self.backend.copy_blocks(self.storage, copies)
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
            None: K/V are there already, only read; so always in a layer of the spec's `shared_layers`. Finite where the
            storage has scales (int8, float8_e4m3). float32, float16 or bfloat16, of NumPy and ml_dtypes, torch, JAX,
            or whatever `pagedcache.exchange.as_numpy` takes; in a bfloat16 cache uint16 stands for that too; like q.
        step : Step
            The open step, from `extend`; or, to read only, a Step.from_arrays over this cache's storage.
        scale : float, optional
            Factor on the scores; ``head_dim ** -0.5`` by default. It and the numbers of the variants below are
            at most 1e28 in size, so that scores are finite in float32.
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
            capabilities say: backend cpu rounds for bfloat16 where the processor multiplies that as it is.
        out : [tokens, q_heads, v_head_dim], optional
            Written in place; of q's dtype or float32, of any library whose arrays may be written.
        lse : float32 [tokens, q_heads], optional
            Filled with the natural log of each softmax's denominator, sink logits included.

        Returns
        -------
        [tokens, q_heads, v_head_dim]
            `out`, or a NumPy array in q's dtype (float32 where q is uint16, or another library's bfloat16 and ml_dtypes
            is not installed); 0 where a query sees no key.

        Raises
        ------
        UnsupportedByBackend
            The backend lacks a variant or the precision.
        ValueError, TypeError
            Arguments that do not fit, a step of another cache, or a cache that is metadata only.
        StepClosed
            The step was committed or abandoned.
        LoadFailed
            A load that the step attends to (`begin_load`) came to nothing.

        Notes
        -----
        All arguments are checked before K/V is stored: a call that is refused has stored nothing, if the
        backend can check them first (`ChecksAttend` or `WritesAndAttends`, as backends cpu and numpy can).
        """
        if self._layer_loads:
            self._await_layer(layer, step)
        with self._lock:  # what _open() does, without an object for it in every layer
            if self._closed or self.storage is None:
                self._refuse_attend()
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
            variants = {}
            if not (sink_logits is softcap is alibi_slopes is mask is mask_indptr is precision is None):
                variants = {
                    "sink_logits": sink_logits,
                    "softcap": softcap,
                    "alibi_slopes": alibi_slopes,
                    "mask": mask,
                    "mask_indptr": mask_indptr,
                    "precision": precision,
                }
            backend: Any = self.backend
            shown: Any = step
            if self._sights is not None:
                if not 0 <= layer < len(self._sights):
                    self.spec.locate(layer)  # which raises what is wrong with it
                sight = self._sights[layer]
                if sight.refusal:
                    raise ValueError(f"layer {layer} {sight.refusal}")
                if sight.source is not None and k is not None:
                    raise ValueError(
                        f"layer {layer} reads K and V of layer {sight.source} (shared_layers): give None for k and v"
                    )
                if sight.group and step.owner is None:
                    raise ValueError(
                        "a step from arrays has the tables of one layer group: it may read layers of the first"
                    )
                variants |= sight.variants
                if sight.chunk is not None:
                    shown = ChunkedStep.of(step, sight.group, sight.chunk)
                    if mask is not None and shown.num_sequences != step.num_sequences:
                        raise ValueError(
                            f"layer {layer} is chunked-local, and new tokens of a sequence reach into another chunk: "
                            "a mask cannot be cut there; give these tokens in steps of their own, without one"
                        )
            if k is None:
                try:
                    done = backend.attend(self.storage, layer, q, shown, scale=scale, out=out, lse=lse, **variants)
                finally:
                    if step.owner is None:  # others are covered when they close
                        self._cover()
            elif at_once := getattr(backend, "write_and_attend", None):  # a WritesAndAttends
                done = at_once(self.storage, layer, q, k, v, shown, scale=scale, out=out, lse=lse, **variants)
            else:
                if check := getattr(backend, "check_attend", None):  # a ChecksAttend
                    check(self.storage, layer, q, shown, scale=scale, out=out, lse=lse, **variants)
                own = step if self._sights is None else step.groups[self._sights[layer].group]
                backend.write(self.storage, layer, k, v, own.slots)
                done = backend.attend(self.storage, layer, q, shown, scale=scale, out=out, lse=lse, **variants)
            return done if out is None else out

    def _refuse_attend(self) -> None:
        with self._open():  # which raises where the cache is closed
            raise ValueError("the cache is metadata only (storage='metadata'): its owner computes attention")

    def commit(self, step: Step, tokens: ArrayLike | None, accepted: ABCSequence[ArrayLike] | None = None) -> int:
        """Close the oldest step and publish its full blocks; see `SequenceTable.commit`.

        K/V of accepted tokens moves to where the tokens stand from then on; with metadata-only storage
        the caller has moved it, as ``step.moves(accepted)`` says.
        """
        if self._layer_loads:
            self._commit_loads(step)
        with self._open():
            if accepted is not None and self.storage is not None:
                self.sequences.check_commit(step, tokens, accepted)
                moves = [group.moves(accepted) for group in step.groups]
                src, dst = (np.concatenate(slots) for slots in zip(*moves, strict=True))
                if len(src):
                    self.backend.copy_slots(self.storage, src, dst)
            self._cover()
            return self.sequences.commit(step, tokens, accepted)

    def abandon(self, step: Step) -> None:
        """Close the newest step as if it never was; see `SequenceTable.abandon`. A load under way ends first."""
        if self._layer_loads and self.sequences.open_steps[-1:] == (step,):
            for load in self._loads_up_to(step):
                if load.step is step:
                    load.stop()
        with self._open():
            self._cover()
            self.sequences.abandon(step)
            self._layer_loads = [load for load in self._layer_loads if load.step is not step]
