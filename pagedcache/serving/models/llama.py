"""The llama architecture in NumPy: the arithmetic between the calls that read and write the KV cache.

Every layer hands its new queries, keys and values to ``cache.attend``; no other place holds a key or a value, and
nothing here knows which sequence a token belongs to, beyond its position. Weights are float32.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache._tensors import on_host
from pagedcache.serving.models.gguf_file import GGUFFile
from pagedcache.serving.models.llama_config import LlamaConfig
from pagedcache.serving.models.llama_weights import Float32, Linear, LlamaLayer, Weights
from pagedcache.spec import CacheSpec

Complex64 = NDArray[np.complex64]


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


class LlamaModel:
    """A model of the llama architecture, computed in float32.

    Parameters
    ----------
    config : LlamaConfig
    embedding : ndarray of float32, shape [vocab, width]
    layers : sequence of LlamaLayer
    norm : ndarray of float32, shape [width]
    head : Linear, from width to vocab
        Where the model ties them, `embedding` is its transposed weight: a view, since BLAS wants the head that way.
    rope_factors : ndarray of float32, shape [rope_dim / 2], optional
        What each rotation frequency is divided by (Llama 3.1 and later).

    Examples
    --------
    >>> from pagedcache import KVCache
    >>> from pagedcache.serving.models import load_model
    >>> model, tokenizer = load_model("model.gguf")                         # doctest: +SKIP
    >>> cache = KVCache(model.cache_spec(), memory="64 MiB")                # doctest: +SKIP
    >>> prompt = tokenizer.encode("The capital of France is")               # doctest: +SKIP
    >>> step = cache.extend(cache.admit([prompt]).ids, len(prompt))         # doctest: +SKIP
    >>> tokenizer.decode([model.forward(prompt, step, cache)[0].argmax()])  # doctest: +SKIP
    ' Paris'
    """

    def __init__(
        self,
        config: LlamaConfig,
        embedding: Float32,
        layers: Sequence[LlamaLayer],
        norm: Float32,
        head: Linear,
        rope_factors: Float32 | None = None,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rope_frequencies = config.rope_base ** -(np.arange(0, config.rope_dim, 2) / config.rope_dim)  # radians
        if rope_factors is not None:
            self._rope_frequencies /= rope_factors

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Self:
        """Read the weights of a GGUF file, each dequantised to float32.

        Raises
        ------
        UnsupportedModel
            The file asks for arithmetic that is not here, lacks a tensor, or has one too many or of a wrong shape.
        """
        config = c = LlamaConfig.from_metadata(file.metadata)
        weights = Weights(file)
        embedding = weights.array("token_embd.weight", c.vocab, c.width)
        layers = [LlamaLayer.read(weights, i, config) for i in range(c.layers)]
        norm = weights.array("output_norm.weight", c.width)
        own = weights.optional("output.weight", c.vocab, c.width)
        head = weights.stack((embedding if own is None else own, None))
        if own is None:
            embedding = head.weight.T
        factors = weights.optional("rope_freqs.weight", c.rope_dim // 2)
        weights.refuse_leftovers()
        return cls(config, embedding, layers, norm, head, factors)

    def cache_spec(self, *, dtype: str = "float32", block_size: int = 16) -> CacheSpec:
        """Return the shape of the cache that this model's keys and values need."""
        return self.config.cache_spec(dtype=dtype, block_size=block_size)

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
            Made with :meth:`cache_spec`; it gets the keys and values of all layers.
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
        angles = step.positions[:, None, None] * self._rope_frequencies
        turn = np.exp(1j * angles).astype(np.complex64)
        x = self._embedding[ids]
        for number, layer in enumerate(self._layers):
            x += self._attention(number, layer, x, turn, step, cache)
            x += self._feed_forward(layer, x)
        return self._head(self._normalise(x[wanted], self._norm))

    def _attention(
        self, number: int, layer: LlamaLayer, x: Float32, turn: Complex64, step: NewTokens, cache: Attends
    ) -> Float32:
        c = self.config
        qkv = layer.attn_qkv(self._normalise(x, layer.attn_norm))
        width = (c.heads + c.kv_heads) * c.head_dim
        qk = qkv[:, :width].reshape(len(x), c.heads + c.kv_heads, c.head_dim)
        v = qkv[:, width:].reshape(len(x), c.kv_heads, c.v_head_dim)
        _rotate(qk[..., : c.rope_dim], turn)
        parts = qk[:, : c.heads], qk[:, c.heads :], v
        q, k, v = map(np.ascontiguousarray, parts)  # the cpu backend looks longer at arrays with gaps
        seen = on_host(cache.attend(number, q, k, v, step))
        return layer.attn_output(seen.reshape(len(x), c.heads * c.v_head_dim))

    def _feed_forward(self, layer: LlamaLayer, x: Float32) -> Float32:
        gate_up = layer.ffn_gate_up(self._normalise(x, layer.ffn_norm))
        gated = _silu(gate_up[:, : self.config.ffn_width])
        gated *= gate_up[:, self.config.ffn_width :]
        return layer.ffn_down(gated)

    def _normalise(self, x: Float32, weight: Float32) -> Float32:
        """Scale each token to a root mean square of 1 (RMSNorm)."""
        mean_square = np.vecdot(x, x) / self.config.width
        scaled: Float32 = x * weight
        scaled /= np.sqrt(mean_square + self.config.eps)[:, None]
        return scaled


def _integers(name: str, values: ArrayLike) -> NDArray[np.integer]:
    array = np.asarray(values)
    if not array.size:
        array = array.astype(np.int64)  # an empty list is float64
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} is of {array.dtype}; token ids and indices are integers")
    return array


def _rows(step: NewTokens, at: ArrayLike | None, all_logits: bool) -> NDArray[np.integer] | slice:
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


def _rotate(x: Float32, turn: Complex64) -> None:
    """Rotate the pairs (0, 1), (2, 3), ... of each head by their token's angles, in place (RoPE).

    GGUF files of this architecture have the rows of the q and k weights permuted so that pairs lie side by side: as the
    two parts of a complex number do.
    """
    pairs = x.view(np.complex64)
    pairs *= turn


def _silu(x: Float32) -> Float32:
    """Return ``x / (1 + exp(-x))``; in one temporary, for a layer's outgrow the processor's cache."""
    y: Float32 = np.negative(x)
    with np.errstate(over="ignore"):  # exp(-x) is inf for very negative x, and x / inf is right
        np.exp(y, out=y)
    y += 1
    np.divide(x, y, out=y)
    return y
