"""The sizes of a model that its cache depends on, read from a GGUF file or a Hugging Face ``config.json``.

Only sizes are read, so that any architecture with heads of keys and values can be planned for, also one whose
arithmetic nothing here computes. Files may come from strangers: sizes are capped and types checked.
"""

import json
import os
import re
import reprlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pagedcache.errors import UnsupportedModel
from pagedcache.spec import CacheSpec

__all__ = ["ModelShape", "read_shape"]

MAX_SIZE = 1 << 24  # of every number below; real models stay far under it
MAX_NBYTES = 4 << 20  # of a config.json


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a cache has to know of a model.

    Examples
    --------
    >>> config = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    >>> ModelShape.from_config(config).cache_spec(dtype="float16").bytes_per_token
    23040
    """

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int  # of queries and keys
    v_head_dim: int
    context: int | None = None  # tokens, the longest sequence that the model was made for
    notes: tuple[str, ...] = ()  # what a plan with these sizes does not take into account

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the keys of a Hugging Face ``config.json``; ``text_config`` within it where the sizes stand there.

        Raises
        ------
        UnsupportedModel
            A size is missing or absurd, or the model stores no heads; the message names key and value.
        """
        inner = config.get("text_config")
        if "num_hidden_layers" not in config and isinstance(inner, Mapping):
            config = inner
        _refuse_latent(config, "kv_lora_rank")
        heads = _size(config, "num_attention_heads")
        head_dim = _optional(config, "head_dim") or max(1, _size(config, "hidden_size") // heads)
        return cls(
            layers=_size(config, "num_hidden_layers"),
            q_heads=heads,
            kv_heads=_optional(config, "num_key_value_heads") or heads,
            head_dim=head_dim,
            v_head_dim=_optional(config, "v_head_dim") or head_dim,
            context=_optional(config, "max_position_embeddings"),
            notes=_notes(config),
        )

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """Read the metadata of a GGUF file, of any architecture.

        Raises
        ------
        UnsupportedModel
            As :meth:`from_config`.
        """
        model = metadata.get("general.architecture")
        if not isinstance(model, str) or not re.fullmatch(r"[\w.-]{1,64}", model, re.ASCII):
            raise UnsupportedModel(f"general.architecture is {reprlib.repr(model)}; it must be a name")
        _refuse_latent(metadata, f"{model}.attention.kv_lora_rank")
        heads = _size(metadata, f"{model}.attention.head_count")
        head_dim = _optional(metadata, f"{model}.attention.key_length")
        head_dim = head_dim or max(1, _size(metadata, f"{model}.embedding_length") // heads)
        window = _optional(metadata, f"{model}.attention.sliding_window")
        return cls(
            layers=_size(metadata, f"{model}.block_count"),
            q_heads=heads,
            kv_heads=_optional(metadata, f"{model}.attention.head_count_kv") or heads,
            head_dim=head_dim,
            v_head_dim=_optional(metadata, f"{model}.attention.value_length") or head_dim,
            context=_optional(metadata, f"{model}.context_length"),
            notes=(_window_note(window, "some"),) if window else (),
        )

    def cache_spec(self, *, dtype: str = "float32", block_size: int = 16) -> CacheSpec:
        """Return the shape of the cache that the model's keys and values need; every layer counts as full."""
        return CacheSpec(
            self.layers, self.kv_heads, self.head_dim, v_head_dim=self.v_head_dim, dtype=dtype, block_size=block_size
        )


def read_shape(path: str | os.PathLike[str]) -> ModelShape:
    """Read a model's sizes from a file: JSON if its name ends so, else GGUF.

    Raises
    ------
    UnsupportedModel
        Not such a file, or sizes that no cache can have; the message names key and value.
    """
    path = Path(path)
    if path.suffix.lower() != ".json":
        from pagedcache.serving.models import GGUFFile

        with GGUFFile(path) as file:
            return ModelShape.from_metadata(file.metadata)
    with path.open("rb") as stream:
        data = stream.read(MAX_NBYTES + 1)
    if len(data) > MAX_NBYTES:
        raise UnsupportedModel(f"{path.name} is larger than {MAX_NBYTES >> 20} MiB; a config.json has some KiB")
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path.name} is not JSON: {type(error).__name__}: {error}") from None
    if not isinstance(config, dict):
        raise UnsupportedModel(f"{path.name} holds a {type(config).__name__}; a config.json holds an object")
    return ModelShape.from_config(config)


def _size(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if type(value) is not int or not 0 < value <= MAX_SIZE:
        raise UnsupportedModel(f"{key} is {reprlib.repr(value)}; one number from 1 to {MAX_SIZE} is needed")
    return value


def _optional(values: Mapping[str, Any], key: str) -> int | None:
    """Return a size; None where it is missing, null or 0, which files write for "as usual"."""
    value = values.get(key)
    return None if value is None or (type(value) is int and value == 0) else _size(values, key)


def _refuse_latent(values: Mapping[str, Any], key: str) -> None:
    if _optional(values, key) is not None:
        raise UnsupportedModel(
            f"{key} is {values[key]}: this model stores latent vectors (MLA) instead of heads of keys and values, "
            "which no backend here computes"
        )


def _notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Say which layers could hold less than is computed here."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds):
        others = Counter(kind for kind in kinds if kind != "full_attention")
        windows = others.pop("sliding_attention", 0)
        notes = [
            f"{count} of {len(kinds)} layers are {kind[:40]!r} and may hold less; they are computed as full"
            for kind, count in others.most_common(4)
        ]
        count = f"{windows} of {len(kinds)}" if windows else ""
    else:
        notes, count = [], "some"
    window = _optional(config, "sliding_window")
    if window and count and config.get("use_sliding_window") is not False:
        notes.insert(0, _window_note(window, count))
    return tuple(notes)


def _window_note(window: int, count: str) -> str:
    return f"{count} layers see a window of {window} tokens and could hold less; they are computed as full"
