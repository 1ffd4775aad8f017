"""The norms that a layer of gemma3 has besides those of every decoder."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from pagedcache.serving.models._weights import Float32, Weights
from pagedcache.serving.models.gemma_config import GemmaConfig


@dataclass(frozen=True, slots=True)
class GemmaNorms:
    """The weights of one layer's further norms; files have them as they are multiplied, 1 already added."""

    qk: Float32  # [heads + kv_heads, head_dim]: the same for all heads of queries, and for all of keys
    after_attention: Float32  # [width]
    after_ffn: Float32  # [width]

    @classmethod
    def read(cls, weights: Weights, number: int, config: GemmaConfig) -> Self:
        """Take those of one layer."""
        c, block = config, f"blk.{number}"
        q, k = (weights.array(f"{block}.attn_{part}_norm.weight", c.head_dim) for part in "qk")
        return cls(
            qk=np.repeat([q, k], [c.heads, c.kv_heads], axis=0),
            after_attention=weights.array(f"{block}.post_attention_norm.weight", c.width),
            after_ffn=weights.array(f"{block}.post_ffw_norm.weight", c.width),
        )
