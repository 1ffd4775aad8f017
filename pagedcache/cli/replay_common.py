"""What the replays have in common: options, traces by name, the progress bar, tables."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pagedcache.cli.options import shape_options
from pagedcache.replay import SHIPPED, Trace, read_trace, shipped_trace
from pagedcache.sizing import ModelShape

__all__ = ["OPT_13B", "Bar", "common_options", "drawing", "find_trace", "print_table", "write_json"]

Command = TypeVar("Command", bound=Callable[..., Any])

OPT_13B = ModelShape(layers=40, q_heads=40, kv_heads=40, head_dim=128, v_head_dim=128)  # of the PagedAttention paper


def common_options(command: Command) -> Command:
    """Add the options that all replays have."""
    for option in (
        click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a report, in one file."),
        click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture, .png or .svg."),
        click.option(
            "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures as JSON."
        ),
        click.option("--dtype", default="float16", show_default=True, help="What K and V are stored as."),
        shape_options,
    ):
        command = option(command)
    return command


class Bar:
    """A progress bar on standard error, where that is a terminal: one for each system in turn."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._total = total
        self._name = ""
        self._shown = 0  # requests, at the last update
        self._task = self._progress.add_task("", total=total)

    def show(self, name: str, done: int) -> None:
        """Show how many requests of a system are done."""
        if name != self._name:
            self._name, self._shown = name, 0
            self._progress.reset(self._task, total=self._total, description=name)
        if done - self._shown >= 16:  # an update takes as long as a request
            self._shown = done
            self._progress.update(self._task, completed=done)

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()


def drawing(plot: Path | None, html: Path | None) -> Any:
    """The module that draws, where something is to be drawn: what is wrong with that comes before minutes of work."""
    if plot is None and html is None:
        return None
    import matplotlib  # noqa: F401

    from pagedcache.replay import pictures

    if plot is not None and plot.suffix.lower() not in (".png", ".svg"):
        raise click.UsageError(f"--plot writes .png or .svg, not {plot.name}")
    return pictures


def find_trace(name: str, block_size: int | None = None) -> Trace:
    return shipped_trace(name) if name in SHIPPED else read_trace(name, block_size=block_size)


def print_table(facts: Sequence[Sequence[str]], table: Sequence[Sequence[str]]) -> None:
    for name, value in facts:
        click.echo(f"{name:<15}{value}")
    click.echo()
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        click.echo("  ".join([f"{row[0]:<{widths[0]}}", *cells]))


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
