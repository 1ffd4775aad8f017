"""The gemma3 architecture in NumPy: most layers see a window, norms on both sides of everything, GELU.

What it has that llama has not: queries and keys are normalised before they are rotated, what attention and the
feed-forward network return is normalised before it is added, and rotation pairs a head's halves instead of neighbours.
"""

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pagedcache.serving.models._decoder import Attends, Decoder, Int, NewTokens, times_sigmoid
from pagedcache.serving.models._weights import Float32, Layer, Linear, Weights
from pagedcache.serving.models.gemma_config import GemmaConfig, cache_layers
from pagedcache.serving.models.gemma_weights import GemmaNorms
from pagedcache.serving.models.gguf_file import GGUFFile
from pagedcache.spec import CacheSpec


class GemmaModel(Decoder):
    """A text model of the gemma3 architecture, computed in float32.

    Its cache has layer groups: one that keeps every token, and those whose layers see a window. The cache applies the
    window; the model only knows that it rotates by other angles there.

    Parameters
    ----------
    config : GemmaConfig
    embedding : ndarray of float32, shape [vocab, width]
    layers : sequence of Layer
    norms : sequence of GemmaNorms
        Of each layer.
    norm : ndarray of float32, shape [width]
    head : Linear, from width to vocab

    Examples
    --------
    >>> from pagedcache import KVCache
    >>> from pagedcache.serving.models import load_model
    >>> model, tokenizer = load_model("gemma-3-270m.gguf")                  # doctest: +SKIP
    >>> cache = KVCache(model.cache_spec(), memory="256 MiB")               # doctest: +SKIP
    >>> prompt = tokenizer.encode("The capital of France is")               # doctest: +SKIP
    >>> step = cache.extend(cache.admit([prompt]).ids, len(prompt))         # doctest: +SKIP
    >>> tokenizer.decode([model.forward(prompt, step, cache)[0].argmax()])  # doctest: +SKIP
    ' the'
    """

    config: GemmaConfig

    def __init__(
        self,
        config: GemmaConfig,
        embedding: Float32,
        layers: Sequence[Layer],
        norms: Sequence[GemmaNorms],
        norm: Float32,
        head: Linear,
    ) -> None:
        super().__init__(config, norm, head)
        self._embedding = embedding
        self._layers = list(zip(cache_layers(config.sliding), config.sliding, layers, norms, strict=True))
        pairs = np.arange(0, config.head_dim, 2) / config.head_dim
        self._rope_frequencies = {  # radians, by whether a layer slides
            False: config.rope_base**-pairs,
            True: config.local_rope_base**-pairs,
        }

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Self:
        """Read the weights of a GGUF file, each dequantised to float32.

        Raises
        ------
        UnsupportedModel
            The file asks for arithmetic that is not here, lacks a tensor, or has one too many or of a wrong shape.
        """
        config = c = GemmaConfig.from_metadata(file.metadata)
        weights = Weights(file)
        embedding, head = weights.embedding_and_head(c.vocab, c.width)
        layers = [Layer.read(weights, i, config) for i in range(c.layers)]
        norms = [GemmaNorms.read(weights, i, config) for i in range(c.layers)]
        norm = weights.array("output_norm.weight", c.width)
        weights.refuse_leftovers()
        return cls(config, embedding, layers, norms, norm, head)

    def cache_spec(self, *, dtype: str = "float32", block_size: int = 16, max_step_tokens: int = 256) -> CacheSpec:
        """Return the shape of the cache that this model's keys and values need.

        A sequence may have up to `max_step_tokens` new tokens in one step: as many more does a window keep.
        """
        return self.config.cache_spec(dtype=dtype, block_size=block_size, max_step_tokens=max_step_tokens)

    def _compute(self, ids: Int, step: NewTokens, cache: Attends) -> Float32:
        turns = {
            slides: _cos_and_sin(step.positions, frequencies) for slides, frequencies in self._rope_frequencies.items()
        }
        x: Float32 = self._embedding[ids]
        x *= math.sqrt(self.config.width)
        for place, slides, layer, norms in self._layers:

            def turned(qk: Float32, weight: Float32 = norms.qk, slides: bool = slides) -> Float32:
                qk = self._normalise(qk, weight)
                _rotate(qk, *turns[slides])
                return qk

            seen = self._attention(place, layer, x, turned, step, cache)
            x += self._normalise(seen, norms.after_attention)
            x += self._normalise(self._feed_forward(layer, x, _gelu), norms.after_ffn)
        return x


def _cos_and_sin(positions: NDArray[np.int64], frequencies: NDArray[np.float64]) -> tuple[Float32, Float32]:
    """Return what the pairs of a head are rotated by, each [tokens, 1, pairs]."""
    angles = positions[:, None, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotate(x: Float32, cos: Float32, sin: Float32) -> None:
    """Rotate the pairs (0, half), (1, half + 1), ... of each head by their token's angles, in place (RoPE)."""
    left, right = np.split(x, 2, axis=-1)
    turned = right * cos + left * sin
    left *= cos
    left -= right * sin
    right[...] = turned


def _gelu(x: Float32) -> Float32:
    """Return ``x / 2 * (1 + tanh(z))`` with ``z = sqrt(2 / pi) * (x + 0.044715 x³)``, which is x / (1 + exp(-2z))."""
    with np.errstate(over="ignore"):  # a cube of inf is as good as any that large
        minus_z = x * x
        minus_z *= 0.044715
        minus_z += 1
        minus_z *= x
        minus_z *= -2 * math.sqrt(2 / math.pi)
    return times_sigmoid(x, minus_z)
