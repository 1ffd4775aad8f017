"""What the replays have in common: options, pictures, how results are told."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from pagedcache.cli.options import json_option, shape_options
from pagedcache.cli.tables import print_facts, print_table
from pagedcache.sizing import ModelShape

__all__ = ["OPT_13B", "common_options", "drawing", "tell"]

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
