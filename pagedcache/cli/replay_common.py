"""What the replays have in common: options, pictures, how results are told."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from pagedcache.cli.options import json_option, read_size, shape_options
from pagedcache.cli.tables import print_facts, print_table
from pagedcache.replay import Trace
from pagedcache.sizing import ModelShape

__all__ = ["OPT_13B", "common_options", "drawing", "longest_legal", "machine_options", "tell", "weights_of"]

Command = TypeVar("Command", bound=Callable[..., Any])

OPT_13B = ModelShape(layers=40, q_heads=40, kv_heads=40, head_dim=128, v_head_dim=128)  # of the PagedAttention paper
OPT_13B_WEIGHTS = 26 * 10**9  # bytes, in float16


def common_options(command: Command) -> Command:
    """Add the options that all replays have."""
    for option in (
        click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a report, in one file."),
        click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture, .png or .svg."),
        json_option,
        click.option("--dtype", default="float16", show_default=True, help="What K and V are stored as."),
        shape_options,
    ):
        command = option(command)
    return command


def machine_options(command: Command) -> Command:
    """Add the options that tell how fast a machine reads, and what."""
    for option in (
        click.option(
            "--bandwidth",
            metavar="SIZE",
            callback=_read_bandwidth,
            default="1244 GB",
            show_default=True,
            help="Bytes that are read in a second: 80 % of an A100's 1.555 TB.",
        ),
        click.option(
            "--weights",
            metavar="SIZE",
            callback=lambda ctx, param, value: None if value is None else read_size(ctx, param, value),
            help="Bytes of the model's weights; 26 GB, or the size of --model's file.",
        ),
    ):
        command = option(command)
    return command


def _read_bandwidth(ctx: click.Context, param: click.Parameter, value: str) -> int:
    if (bandwidth := read_size(ctx, param, value)) < 1:
        raise click.BadParameter("0 is too little; it must be at least one byte a second", ctx, param)
    return bandwidth


def weights_of(weights: int | None, model: Path | None) -> int:
    """Return the bytes of the weights that --weights, --model's file or OPT-13B have."""
    if weights is not None:
        return weights
    return OPT_13B_WEIGHTS if model is None else model.stat().st_size


def longest_legal(trace: Trace) -> int:
    """Return the tokens of the longest request, rounded up to a power of two."""
    return 1 << (int((trace.prompts + trace.outputs).max()) - 1).bit_length()


def drawing(plot: Path | None, html: Path | None) -> Any:
    """The module that draws, where something is to be drawn: what is wrong with that comes before minutes of work."""
    if plot is None and html is None:
        return None
    import matplotlib  # noqa: F401

    from pagedcache.replay import pictures

    if plot is not None and plot.suffix.lower() not in (".png", ".svg"):
        raise click.UsageError(f"--plot writes .png or .svg, not {plot.name}")
    return pictures


def tell(
    facts: Sequence[tuple[str, str]], table: Sequence[Sequence[str]], figures: dict[str, Any], *, as_json: bool
) -> None:
    """Print what was asked and found, in words and a table, or all figures as one JSON object."""
    if as_json:
        click.echo(json.dumps(figures))
        return
    print_facts(facts)
    click.echo()
    print_table(table)
