"""What decoders of all architectures share: a layer around its call of the cache, and what comes before and after.

Every layer hands its new queries, keys and values to ``cache.attend``; no other place holds a key or a value, and
nothing here knows which sequence a token belongs to, beyond its position. Weights are float32.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache._tensors import on_host
from pagedcache.serving.models._weights import Float32, Layer, Linear, Sizes

Int = NDArray[np.integer]


class DecoderConfig(Sizes, Protocol):
    """The numbers that every architecture here has."""

    @property
    def context(self) -> int:
        """Tokens, the longest sequence the model was trained for."""

    @property
    def vocab(self) -> int:
        """Tokens."""

    @property
    def eps(self) -> float:
        """Of RMSNorm."""


class NewTokens(Protocol):
    """What the arithmetic needs of a ``Step``."""

    @property
    def positions(self) -> NDArray[np.int64]:
        """[tokens], the place of each new token in its sequence."""

    @property
    def qo_indptr(self) -> NDArray[np.int32]:
        """[n + 1], where each sequence's new tokens begin."""


class Attends(Protocol):
    """What the arithmetic needs of a ``KVCache``."""

    def attend(self, layer: int, q: Any, k: Any, v: Any, step: Any) -> Any:
        """Store k and v of the new tokens, then return what q attends to, [tokens, heads, v_head_dim]."""


class Decoder(ABC):
    """A model of new tokens: checks them, has an architecture's layers compute, and makes logits of what comes out.

    Parameters
    ----------
    config : DecoderConfig
    norm : ndarray of float32, shape [width]
        Of the norm after the last layer.
    head : Linear, from width to vocab
    """

    def __init__(self, config: DecoderConfig, norm: Float32, head: Linear) -> None:
        self.config = config
        self._norm = norm
        self._head = head

    @abstractmethod
    def _compute(self, ids: Int, step: NewTokens, cache: Attends) -> Float32:
        """Run checked token ids through all layers; return the residual stream, [tokens, width]."""

    def forward(
        self,
        tokens: ArrayLike,
        step: NewTokens,
        cache: Attends,
        *,
        at: ArrayLike | None = None,
        all_logits: bool = False,
    ) -> Float32:
        """Run the new tokens of a step through the model.

        Parameters
        ----------
        tokens : array_like of int, shape [tokens]
            In the step's order.
        step : Step
            From ``cache.extend``; its owner commits it afterwards.
        cache : KVCache
            Made with ``cache_spec``; it gets the keys and values of all layers.
        at : array_like of int, shape [n], optional
            Return the logits after these of the step's new tokens, in this order, instead of after the last one of
            each sequence. The head is the dearest product of a small model: ask for no more than what is looked at.
        all_logits : bool
            Return the logits after every token.

        Returns
        -------
        ndarray of float32, shape [sequences, vocab], [n, vocab] or [tokens, vocab]

        Raises
        ------
        TypeError
            Token ids, or what is in `at`, are not integers.
        ValueError
            A token id is outside of the vocabulary, there are not as many as the step has new tokens, `at` names a
            token that the step lacks or is given along with `all_logits`, or a sequence has no new token (after which
            no logits stand) and neither is given. Nothing was stored.
        """
        ids = _integers("tokens", tokens)
        if ids.shape != step.positions.shape:
            raise ValueError(f"tokens has shape {ids.shape}; the step has {step.positions.shape[0]} new tokens")
        if ids.size and not 0 <= ids.min() <= ids.max() < self.config.vocab:
            raise ValueError(
                f"token ids reach from {ids.min()} to {ids.max()}; the vocabulary ends at {self.config.vocab - 1}"
            )
        wanted = _rows(step, at, all_logits)
        x = self._compute(ids, step, cache)
        return self._head(self._normalise(x[wanted], self._norm))

    def _attention(
        self,
        place: int,
        layer: Layer,
        x: Float32,
        turned: Callable[[Float32], Float32],
        step: NewTokens,
        cache: Attends,
    ) -> Float32:
        """Compute the attention of a layer, which is the cache's layer `place`.

        `turned` makes what is stored and multiplied of queries and keys, [tokens, heads + kv_heads, head_dim].
        """
        c = self.config
        qkv = layer.attn_qkv(self._normalise(x, layer.attn_norm))
        width = (c.heads + c.kv_heads) * c.head_dim
        qk = turned(qkv[:, :width].reshape(len(x), c.heads + c.kv_heads, c.head_dim))
        v = qkv[:, width:].reshape(len(x), c.kv_heads, c.v_head_dim)
        parts = qk[:, : c.heads], qk[:, c.heads :], v
        q, k, v = map(np.ascontiguousarray, parts)  # the cpu backend looks longer at arrays with gaps
        seen = on_host(cache.attend(place, q, k, v, step))
        return layer.attn_output(seen.reshape(len(x), c.heads * c.v_head_dim))

    def _feed_forward(self, layer: Layer, x: Float32, activation: Callable[[Float32], Float32]) -> Float32:
        gate_up = layer.ffn_gate_up(self._normalise(x, layer.ffn_norm))
        gated = activation(gate_up[:, : self.config.ffn_width])
        gated *= gate_up[:, self.config.ffn_width :]
        return layer.ffn_down(gated)

    def _normalise(self, x: Float32, weight: Float32) -> Float32:
        """Scale the last axis to a root mean square of 1 (RMSNorm)."""
        mean_square = np.vecdot(x, x) / x.shape[-1]
        scaled: Float32 = x * weight
        scaled /= np.sqrt(mean_square + self.config.eps)[..., None]
        return scaled


def times_sigmoid(x: Float32, minus_z: Float32) -> Float32:
    """Return ``x / (1 + exp(minus_z))``, in the memory of `minus_z`: a layer's outgrow the processor's cache."""
    with np.errstate(over="ignore"):  # exp is inf for a very negative z, and x / inf is right
        np.exp(minus_z, out=minus_z)
    minus_z += 1
    return np.divide(x, minus_z, out=minus_z)


def _integers(name: str, values: ArrayLike) -> Int:
    array = np.asarray(values)
    if not array.size:
        array = array.astype(np.int64)  # an empty list is float64
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} is of {array.dtype}; token ids and indices are integers")
    return array


def _rows(step: NewTokens, at: ArrayLike | None, all_logits: bool) -> Int | slice:
    """Which of a step's new tokens get logits."""
    if all_logits:
        if at is not None:
            raise ValueError("at and all_logits are both given: at names the tokens, all_logits asks for all of them")
        return slice(None)
    if at is not None:
        rows, count = _integers("at", at), len(step.positions)
        if rows.ndim != 1:
            raise ValueError(f"at has shape {rows.shape}; it is one row of indices")
        if rows.size and not 0 <= rows.min() <= rows.max() < count:
            raise ValueError(f"at reaches from {rows.min()} to {rows.max()}; the step has tokens 0 to {count - 1}")
        return rows
    counts = np.diff(step.qo_indptr)
    if not counts.all():
        raise ValueError(
            f"sequence {int((counts == 0).argmax())} of the step has no new token, hence no logits: leave it out of "
            "the step, name the tokens with at, or ask for all_logits=True"
        )
    last: NDArray[np.int32] = step.qo_indptr[1:] - 1
    return last
