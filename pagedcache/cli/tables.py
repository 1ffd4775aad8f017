"""How commands show names with values, and tables, so that they can be read in pipes and files too."""

import sys
from collections.abc import Sequence

import click
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

__all__ = ["facts_table", "print_facts", "print_table", "print_tree"]

WIDTH = 200  # columns, where there is no terminal whose width counts


def print_table(rows: Sequence[Sequence[str | Text]]) -> None:
    """Print rows, of which the first names the columns: words in the first column, numbers in the others."""
    names, *others = rows
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left")
    for row in others:
        table.add_row(*row, end_section="\n" in str(row[0]))  # rows of several lines stand apart
    _print(table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values."""
    _print(facts_table(facts))


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Return names and values as rich prints them."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    for name, value in facts:
        grid.add_row(name, Text(value))
    return grid


def print_tree(tree: Tree) -> None:
    """Print a tree; its labels are markup."""
    _print(tree)


def _print(what: RenderableType) -> None:
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH)
    with console.capture() as printed:
        console.print(what)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))
