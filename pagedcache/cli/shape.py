"""The shape of a model, from a file or from numbers."""

from pathlib import Path

import click

from pagedcache.serving.models import GGUFFile, LlamaConfig
from pagedcache.spec import CacheSpec

__all__ = ["spec_of"]


def spec_of(
    model: Path | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    *,
    dtype: str,
    block_size: int = 16,
    default: tuple[int, int, int] | None = None,
) -> CacheSpec:
    """Return the spec that --model, or --layers, --kv-heads and --head-dim ask for; `default` where none is given."""
    numbers = (layers, kv_heads, head_dim)
    if default is not None and model is None and numbers == (None, None, None):
        layers, kv_heads, head_dim = default
    if layers is not None and kv_heads is not None and head_dim is not None and model is None:
        return CacheSpec(layers, kv_heads, head_dim, dtype=dtype, block_size=block_size)
    if model is not None and numbers == (None, None, None):
        with GGUFFile(model) as file:
            return LlamaConfig.from_metadata(file.metadata).cache_spec(dtype=dtype, block_size=block_size)
    raise click.UsageError("give either --model, or all of --layers, --kv-heads and --head-dim")
