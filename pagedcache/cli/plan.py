"""``pagedcache plan``: what a cache for a model costs, and what a budget holds."""

from pathlib import Path

import click

from pagedcache.cli.options import cache_options
from pagedcache.serving.models import GGUFFile, LlamaConfig
from pagedcache.spec import CacheSpec


@click.command()
@click.option("--layers", type=click.IntRange(1), help="Layers, instead of a model file.")
@click.option("--kv-heads", type=click.IntRange(1), help="Key/value heads.")
@click.option("--head-dim", type=click.IntRange(1), help="Size of a head.")
@click.option("--length", type=click.IntRange(1), default=2048, show_default=True, help="Tokens of one sequence.")
@cache_options
def plan(
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    length: int,
    model: Path | None,
    block_size: int,
    dtype: str,
    memory: int,
) -> None:
    """Tell what a cache costs and how many sequences fit.

    The shape of the model comes from --model, or from --layers, --kv-heads and --head-dim.
    """
    if layers is not None and kv_heads is not None and head_dim is not None and model is None:
        spec = CacheSpec(layers, kv_heads, head_dim, dtype=dtype, block_size=block_size)
    elif model is not None and layers is kv_heads is head_dim is None:
        with GGUFFile(model) as file:
            spec = LlamaConfig.from_metadata(file.metadata).cache_spec(dtype=dtype, block_size=block_size)
    else:
        raise click.UsageError("give either --model, or all of --layers, --kv-heads and --head-dim")
    click.echo(spec.explain(memory=memory))
    fit = spec.sequences_that_fit(length, memory=memory)
    click.echo(
        f"{fit} sequences of {length} tokens, {spec.blocks_per_sequence(length)} blocks each, if none are shared"
    )
