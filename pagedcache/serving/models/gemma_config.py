"""The sizes of a gemma3-architecture model, read from GGUF metadata; what cannot be computed is refused here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from pagedcache.errors import UnsupportedModel
from pagedcache.serving.models._settings import Settings
from pagedcache.spec import CacheSpec, LayerGroup

MAX_LAYERS = 4096
PERIOD = 6  # files seldom say which layers see everything: it is every sixth
LOCAL_ROPE_BASE = 10_000.0  # and seldom what sliding layers rotate by


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """The sizes of one model."""

    vocab: int  # tokens
    context: int  # tokens, the longest sequence the model was trained for
    width: int  # of the residual stream
    ffn_width: int
    heads: int  # query heads
    kv_heads: int
    head_dim: int  # of queries and keys
    v_head_dim: int
    sliding: tuple[bool, ...]  # of each layer: whether its queries see a window, or everything
    window: int  # tokens that a query of a sliding layer sees, its own included
    rope_base: float  # of layers that see everything
    local_rope_base: float  # of sliding layers
    eps: float  # of RMSNorm

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """Read the ``gemma3.*`` keys.

        Raises
        ------
        UnsupportedModel
            Another architecture, a feature that is not computed, or sizes that contradict each other.

        Examples
        --------
        >>> GemmaConfig.from_metadata({"general.architecture": "gemma3", "gemma3.final_logit_softcapping": 30.0})
        Traceback (most recent call last):
        pagedcache.errors.UnsupportedModel: gemma3.final_logit_softcapping is 30.0; only 0.0 is computed
        """
        settings = Settings(metadata, "gemma3")
        size, positive = settings.size, settings.positive
        width, heads = size("embedding_length"), size("attention.head_count")
        head_dim = size("attention.key_length", max(1, width // heads))
        rope_dim = size("rope.dimension_count", head_dim)
        config = cls(
            vocab=settings.vocab(),
            context=size("context_length"),
            width=width,
            ffn_width=size("feed_forward_length"),
            heads=heads,
            kv_heads=size("attention.head_count_kv", heads),
            head_dim=head_dim,
            v_head_dim=size("attention.value_length", head_dim),
            sliding=_sliding(settings),
            window=size("attention.sliding_window"),
            rope_base=positive("rope.freq_base", 1_000_000.0),
            local_rope_base=positive("rope.freq_base_swa", LOCAL_ROPE_BASE),
            eps=positive("attention.layer_norm_rms_epsilon"),
        )
        if heads % config.kv_heads:
            raise UnsupportedModel(f"{heads} query heads cannot share {config.kv_heads} key/value heads evenly")
        if head_dim % 2 or rope_dim != head_dim:
            raise UnsupportedModel(
                f"{rope_dim} rotated dimensions of {head_dim}; only all of an even number are computed"
            )
        return config

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.sliding)

    def cache_spec(self, *, dtype: str = "float32", block_size: int = 16, max_step_tokens: int = 256) -> CacheSpec:
        """Return the shape of the cache that the model's keys and values need.

        Layers that see everything are group 0. Those that slide are cut into groups as large as that one, so that no
        block has room that its group leaves unused; `cache_layers` says where each layer is.
        """
        slide = sum(self.sliding)
        full = self.layers - slide
        sizes = [min(full, slide - begin) for begin in range(0, slide, full)]
        return CacheSpec(
            self.layers,
            self.kv_heads,
            self.head_dim,
            v_head_dim=self.v_head_dim,
            dtype=dtype,
            block_size=block_size,
            groups=[LayerGroup(full), *(LayerGroup(size, "sliding_window", self.window) for size in sizes)],
            max_step_tokens=max_step_tokens,
        )


def cache_layers(sliding: Sequence[bool]) -> list[int]:
    """Return for each layer its number in the cache, where those that see everything come first.

    >>> cache_layers([True, True, False, True, True, False])
    [2, 3, 0, 4, 5, 1]
    """
    order = np.argsort(sliding, kind="stable")  # the model's layers, as the cache numbers them
    places: list[int] = np.argsort(order).tolist()
    return places


def _sliding(settings: Settings) -> tuple[bool, ...]:
    """Return which layers slide: all but each n-th, or as a list in the file says."""
    layers = settings.size("block_count", maximum=MAX_LAYERS)
    name = "attention.sliding_window_pattern"
    given = settings.get(name, PERIOD)
    if isinstance(given, list):
        pattern = given
    else:
        period = settings.size(name, PERIOD)
        pattern = [(layer + 1) % period != 0 for layer in range(layers)]
    if len(pattern) != layers or any(type(slides) is not bool for slides in pattern):
        raise settings.refused(name, given, f"a number, or a truth value for each of {layers} layers, is needed")
    if all(pattern):
        raise settings.refused(name, given, f"at least one of {layers} layers has to see everything")
    return tuple(pattern)
