"""Where the layers of a model stand in a KVCache: read from its configuration, or refused."""

from dataclasses import dataclass
from typing import Any

from pagedcache.errors import UnsupportedModel
from pagedcache.spec import CacheSpec, LayerGroup

__all__ = ["Layout", "layout_of"]

KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Layout:
    """Of one model.

    Attributes
    ----------
    groups : tuple of LayerGroup
    places : tuple of int
        For each layer of the model, its number in the cache, where layers are numbered group by group.
    windows : tuple of (int or None)
        For each layer of the model, how many tokens it sees.
    bounded : bool
        Every layer slides: the cache, whose first group must be a full one, keeps all tokens, and only as long as
        none is outside the window does the kernel see what the model means.
    """

    kv_heads: int
    head_dim: int
    groups: tuple[LayerGroup, ...]
    places: tuple[int, ...]
    windows: tuple[int | None, ...]
    bounded: bool

    def spec(self, dtype: str, block_size: int, max_step_tokens: int) -> CacheSpec:
        """The shape of the cache."""
        return CacheSpec(
            len(self.places),
            self.kv_heads,
            self.head_dim,
            dtype=dtype,
            block_size=block_size,
            groups=self.groups,
            max_step_tokens=max_step_tokens,
        )


def layout_of(config: Any) -> Layout:
    """Read the configuration of a model (of its text part, where it has several).

    Raises
    ------
    UnsupportedModel
        An encoder and a decoder, layers other than of full and sliding attention, or layers that share K and V.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{_name(config)} has an encoder, whose K and V are no growing cache: leave cache= out")
    text = config.get_text_config(decoder=True)
    if getattr(text, "num_kv_shared_layers", 0) or "reuse" in (getattr(text, "kv_sharing_modes", None) or ()):
        raise UnsupportedModel(f"{_name(text)} has layers that share K and V: leave cache= out")
    kinds = _kinds(text)
    if strange := sorted(set(kinds) - set(KINDS)):
        raise UnsupportedModel(f"{_name(text)} has layers of {strange[0]!r}; PagedCache knows {' and '.join(KINDS)}")
    windows = tuple(text.sliding_window if kind == "sliding_attention" else None for kind in kinds)
    heads = text.num_attention_heads
    full = kinds.count("full_attention")
    return Layout(
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        groups=tuple(_groups(full, [window for window in windows if window is not None])),
        places=_places(kinds) if full else tuple(range(len(kinds))),
        windows=windows,
        bounded=not full,
    )


def _name(config: Any) -> str:
    return f"the model ({getattr(config, 'model_type', type(config).__name__)})"


def _kinds(text: Any) -> list[str]:
    """What each layer attends to, said by the configuration or implied as transformers does."""
    if (kinds := getattr(text, "layer_types", None)) is not None:
        return list(kinds)
    kind = "full_attention"
    if getattr(text, "sliding_window", None) is not None:
        kind = "sliding_attention"
    elif getattr(text, "attention_chunk_size", None) is not None:
        kind = "chunked_attention"
    return [kind] * text.num_hidden_layers


def _groups(full: int, windows: list[int]) -> list[LayerGroup]:
    """The full layers in one group; the others in groups as large, so that blocks of all are well filled."""
    if not full:
        return [LayerGroup(len(windows))]
    pieces = [windows[begin : begin + full] for begin in range(0, len(windows), full)]
    return [LayerGroup(full), *(LayerGroup(len(piece), "sliding_window", window=piece[0]) for piece in pieces)]


def _places(kinds: list[str]) -> tuple[int, ...]:
    in_cache = sorted(range(len(kinds)), key=lambda layer: kinds[layer] != "full_attention")  # a stable sort
    return tuple(in_cache.index(layer) for layer in range(len(kinds)))
