"""The sizes of a llama-architecture model, read from GGUF metadata; what cannot be computed is refused here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pagedcache.errors import UnsupportedModel
from pagedcache.serving.models._settings import Settings
from pagedcache.spec import CacheSpec


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The sizes of one model."""

    vocab: int  # tokens
    context: int  # tokens, the longest sequence the model was trained for
    layers: int
    width: int  # of the residual stream
    ffn_width: int
    heads: int  # query heads
    kv_heads: int
    head_dim: int  # of queries and keys
    v_head_dim: int
    rope_dim: int  # leading dimensions of each head that are rotated
    rope_base: float
    eps: float  # of RMSNorm

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """Read the ``llama.*`` keys.

        Raises
        ------
        UnsupportedModel
            Another architecture, a feature that is not computed, or sizes that contradict each other.

        Examples
        --------
        >>> LlamaConfig.from_metadata({"general.architecture": "llama", "llama.expert_count": 8})
        Traceback (most recent call last):
        pagedcache.errors.UnsupportedModel: llama.expert_count is 8; only 0 is computed
        """
        settings = Settings(metadata, "llama", attention__sliding_window=(0,))
        size, positive = settings.size, settings.positive
        width, heads = size("embedding_length"), size("attention.head_count")
        head_dim = size("attention.key_length", max(1, width // heads))
        config = cls(
            vocab=settings.vocab(),
            context=size("context_length"),
            layers=size("block_count"),
            width=width,
            ffn_width=size("feed_forward_length"),
            heads=heads,
            kv_heads=size("attention.head_count_kv", heads),
            head_dim=head_dim,
            v_head_dim=size("attention.value_length", head_dim),
            rope_dim=size("rope.dimension_count", head_dim),
            rope_base=positive("rope.freq_base", 10_000.0),
            eps=positive("attention.layer_norm_rms_epsilon"),
        )
        if config.heads % config.kv_heads:
            raise UnsupportedModel(f"{config.heads} query heads cannot share {config.kv_heads} key/value heads evenly")
        if config.rope_dim % 2 or config.rope_dim > config.head_dim:
            raise UnsupportedModel(f"{config.rope_dim} rotated dimensions do not fit heads of {config.head_dim}")
        return config

    def cache_spec(self, *, dtype: str = "float32", block_size: int = 16) -> CacheSpec:
        """Return the shape of the cache that the model's keys and values need."""
        return CacheSpec(
            self.layers, self.kv_heads, self.head_dim, v_head_dim=self.v_head_dim, dtype=dtype, block_size=block_size
        )
