"""``pagedcache plan``: what a cache for a model costs, and what a budget holds."""

from pathlib import Path

import click

from pagedcache.cli.options import cache_options
from pagedcache.cli.shape import spec_of


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
    spec = spec_of(model, layers, kv_heads, head_dim, dtype=dtype, block_size=block_size)
    click.echo(spec.explain(memory=memory))
    fit = spec.sequences_that_fit(length, memory=memory)
    click.echo(
        f"{fit} sequences of {length} tokens, {spec.blocks_per_sequence(length)} blocks each, if none are shared"
    )
