"""``pagedcache plan``: what a cache for a model costs, and what a budget holds."""

import json
from pathlib import Path

import click

from pagedcache.cli.options import (
    block_size_option,
    dtype_option,
    json_option,
    memory_option,
    shape_of,
    shape_options,
)
from pagedcache.cli.report import count
from pagedcache.sizing import plan_memory


@click.command()
@shape_options
@click.option(
    "--length",
    "lengths",
    type=click.IntRange(1),
    multiple=True,
    default=(2048,),
    show_default=True,
    help="Tokens of one sequence; may be given several times.",
)
@click.option(
    "--max-length",
    type=click.IntRange(1),
    help="Tokens that a contiguous cache reserves for each sequence; the model's context, else the largest --length.",
)
@block_size_option
@dtype_option
@memory_option
@json_option
def plan(
    model: Path | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    lengths: tuple[int, ...],
    max_length: int | None,
    block_size: int,
    dtype: str,
    memory: int,
    as_json: bool,
) -> None:
    """Tell what a cache costs and how many sequences fit.

    The shape of the model comes from --model, or from --layers, --kv-heads and --head-dim.
    """
    shape = shape_of(model, layers, kv_heads, head_dim)
    spec = shape.cache_spec(dtype=dtype, block_size=block_size)
    made = plan_memory(spec, memory, lengths, max_length=max_length or shape.context or max(lengths))
    if as_json:
        report = {
            "layers": spec.layers,
            "kv_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "v_head_dim": spec.v_head_dim,
            "dtype": spec.dtype,
            "block_size": spec.block_size,
            "memory": made.memory,
            "bytes_per_token": spec.bytes_per_token,
            "bytes_per_block": spec.bytes_per_block,
            "num_blocks": made.num_blocks,
            "pool_nbytes": made.pool_nbytes,
            "sequences": [
                {"length": room.length, "blocks": room.blocks, "sequences": room.sequences} for room in made.rooms
            ],
            "contiguous": {"max_length": made.max_length, "sequences": made.contiguous_sequences},
            "notes": shape.notes,
        }
        click.echo(json.dumps(report))
        return
    click.echo(spec.explain(memory=memory))
    for room in made.rooms:
        click.echo(
            f"{count(room.sequences, 'sequence')} of {room.length} tokens, {room.blocks} blocks each, "
            "if none are shared"
        )
    click.echo(
        f"{count(made.contiguous_sequences, 'sequence')} in a contiguous cache that reserves {made.max_length} "
        "tokens for each"
    )
    for note in shape.notes:
        click.echo(f"note: {note}")
