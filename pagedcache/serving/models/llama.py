"""The llama architecture in NumPy: rotated queries and keys, and a feed-forward network gated by SiLU."""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pagedcache.serving.models._decoder import Attends, Decoder, Int, NewTokens, times_sigmoid
from pagedcache.serving.models._weights import Float32, Layer, Linear, Weights
from pagedcache.serving.models.gguf_file import GGUFFile
from pagedcache.serving.models.llama_config import LlamaConfig
from pagedcache.spec import CacheSpec


class LlamaModel(Decoder):
    """A model of the llama architecture, computed in float32.

    Parameters
    ----------
    config : LlamaConfig
    embedding : ndarray of float32, shape [vocab, width]
    layers : sequence of Layer
    norm : ndarray of float32, shape [width]
    head : Linear, from width to vocab
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

    config: LlamaConfig

    def __init__(
        self,
        config: LlamaConfig,
        embedding: Float32,
        layers: Sequence[Layer],
        norm: Float32,
        head: Linear,
        rope_factors: Float32 | None = None,
    ) -> None:
        super().__init__(config, norm, head)
        self._embedding = embedding
        self._layers = layers
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
        embedding, head = weights.embedding_and_head(c.vocab, c.width)
        layers = [Layer.read(weights, i, config) for i in range(c.layers)]
        norm = weights.array("output_norm.weight", c.width)
        factors = weights.optional("rope_freqs.weight", c.rope_dim // 2)
        weights.refuse_leftovers()
        return cls(config, embedding, layers, norm, head, factors)

    def cache_spec(self, *, dtype: str = "float32", block_size: int = 16) -> CacheSpec:
        """Return the shape of the cache that this model's keys and values need."""
        return self.config.cache_spec(dtype=dtype, block_size=block_size)

    def _compute(self, ids: Int, step: NewTokens, cache: Attends) -> Float32:
        angles = step.positions[:, None, None] * self._rope_frequencies
        turn = np.exp(1j * angles).astype(np.complex64)

        def turned(qk: Float32) -> Float32:
            _rotate(qk[..., : self.config.rope_dim], turn)
            return qk

        x: Float32 = self._embedding[ids]
        for number, layer in enumerate(self._layers):
            x += self._attention(number, layer, x, turned, step, cache)
            x += self._feed_forward(layer, x, _silu)
        return x


def _rotate(x: Float32, turn: NDArray[np.complex64]) -> None:
    """Rotate the pairs (0, 1), (2, 3), ... of each head by their token's angles, in place (RoPE).

    GGUF files of this architecture have the rows of the q and k weights permuted so that pairs lie side by side: as the
    two parts of a complex number do.
    """
    pairs = x.view(np.complex64)
    pairs *= turn


def _silu(x: Float32) -> Float32:
    """Return ``x / (1 + exp(-x))``."""
    return times_sigmoid(x, np.negative(x))
