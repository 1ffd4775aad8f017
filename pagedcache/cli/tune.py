"""``pagedcache tune``: which block size suits a model and its lengths."""

import dataclasses
import json
from pathlib import Path

import click
import numpy as np

from pagedcache.cli.options import dtype_option, find_trace, json_option, shape_of, shape_options, trace_option
from pagedcache.cli.report import count
from pagedcache.cli.tables import print_table
from pagedcache.sizing import BLOCK_SIZES, ModelShape, advise, cost_of_block_sizes, decode_speeds
from pagedcache.sizing.block_sizes import MAX_SEQUENCES, TURNS

LLAMA_3_8B = ModelShape(layers=32, q_heads=32, kv_heads=8, head_dim=128, v_head_dim=128)
SLOWER = 0.03  # share of speed that does not matter


@click.command()
@shape_options
@click.option(
    "--query-heads", type=click.IntRange(1), help="Query heads; the model's, else as many as key/value heads."
)
@trace_option
@click.option(
    "--system", type=click.IntRange(0, 1 << 20), default=64, show_default=True, help="Tokens that all prompts share."
)
@dtype_option
@click.option("--speed/--no-speed", default=True, help="Whether to measure attention.")
@click.option(
    "--seconds", type=click.FloatRange(0, 600), default=5.0, show_default=True, help="To spend on measuring attention."
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Of attention. One tells block sizes apart best where other programs keep the cores busy.",
)
@json_option
def tune(
    model: Path | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    query_heads: int | None,
    trace: str,
    system: int,
    dtype: str,
    speed: bool,
    seconds: float,
    threads: int,
    as_json: bool,
) -> None:
    """Measure block sizes 1 to 256, and advise one.

    The shape of the model comes from --model, or from --layers, --kv-heads and --head-dim; it is that of Llama 3 8B
    if none is given.
    """
    shape = shape_of(model, layers, kv_heads, head_dim, default=LLAMA_3_8B)
    spec, q_heads = shape.cache_spec(dtype=dtype), query_heads or shape.q_heads
    given = find_trace(trace)
    answered = given.select(len(given))
    lengths = np.stack([answered.prompts, answered.outputs], axis=1)
    speeds = decode_speeds(spec, BLOCK_SIZES, q_heads=q_heads, seconds=seconds, threads=threads) if speed else None
    costs = cost_of_block_sizes(spec, lengths, system_tokens=system, speeds=speeds)
    advice = advise(costs, slower=max(SLOWER, speeds.noise) if speeds else SLOWER)
    if as_json:
        report = {
            "layers": spec.layers,
            "kv_heads": spec.kv_heads,
            "query_heads": q_heads,
            "head_dim": spec.head_dim,
            "dtype": dtype,
            "trace": answered.summary(),
            "block_sizes": [dataclasses.asdict(cost) for cost in costs],
            "speed_noise": speeds.noise if speeds else None,
            "advice": dataclasses.asdict(advice),
        }
        click.echo(json.dumps(report))
        return
    prompt, output = lengths.mean(axis=0)
    click.echo(
        f"{spec.layers} layers, {q_heads} query heads over {spec.kv_heads} of K and V, {spec.head_dim} wide, {dtype}\n"
        f"{given.name}: {count(len(lengths), 'prompt')} of {prompt:.0f} tokens with answers of {output:.0f}, "
        f"on average\nAt most {MAX_SEQUENCES} are measured; {TURNS} turns to a conversation, {system} tokens that all "
        "share\n"
    )
    table = [["block size", "unused slots", "bookkeeping", "reuse lost", "attention"]]
    table += [
        [
            str(cost.block_size),
            f"{100 * cost.unused:.1f} %",
            f"{100 * cost.bookkeeping:.3f} %",
            f"{100 * cost.reuse_lost:.1f} %",
            "not measured" if cost.speed is None else f"{100 * cost.speed:.1f} %",
        ]
        for cost in costs
    ]
    print_table(table)
    click.echo()
    if speeds is not None:
        fastest = max(speeds.bytes_per_second.values()) / 1e9
        click.echo(
            f"Attention: {fastest:.1f} GB/s of K and V is 100 %; two halves of the run differ by up to "
            f"{100 * speeds.noise:.1f} %."
        )
    click.echo(advice.text)
