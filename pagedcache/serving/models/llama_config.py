"""The sizes of a llama-architecture model, read from GGUF metadata; what cannot be computed is refused here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pagedcache.errors import UnsupportedModel
from pagedcache.spec import CacheSpec

# Keys that change the arithmetic, and the values that leave it as llama.py has it.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (1.0,),
    "rope.scale_linear": (1.0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
}
MAX_SIZE = 1 << 24  # of every count below; real models stay far under it


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
        architecture = metadata.get("general.architecture")
        if architecture != "llama":
            raise UnsupportedModel(f"general.architecture is {architecture!r}; only 'llama' is computed")
        for name, neutral in _NEUTRAL.items():
            if (value := metadata.get(f"llama.{name}", neutral[0])) not in neutral:
                raise UnsupportedModel(f"llama.{name} is {value!r}; only {' or '.join(map(repr, neutral))} is computed")

        def size(name: str, default: int | None = None) -> int:
            value = metadata.get(f"llama.{name}", default)
            if type(value) is not int or not 0 < value <= MAX_SIZE:
                raise UnsupportedModel(f"llama.{name} is {value!r}; one number from 1 to {MAX_SIZE} is needed")
            return value

        def positive(name: str, default: float | None = None) -> float:
            value = metadata.get(f"llama.{name}", default)
            if type(value) is not float or not 0 < value < math.inf:
                raise UnsupportedModel(f"llama.{name} is {value!r}; a positive number is needed")
            return value

        width, heads = size("embedding_length"), size("attention.head_count")
        head_dim = size("attention.key_length", max(1, width // heads))
        config = cls(
            vocab=size("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ()))),
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
