"""``pagedcache inspect``: who has which block, of a snapshot of a live cache or of a saved file."""

import json
from pathlib import Path

import click
from rich.markup import escape
from rich.tree import Tree

from pagedcache.cli.options import json_option
from pagedcache.cli.replay_common import drawing
from pagedcache.cli.report import count
from pagedcache.cli.tables import print_facts, print_tree
from pagedcache.inspection import Run, Snapshot, sharing
from pagedcache.inspection.block_map import block_letters

NAMES = 4  # sequences that are named in a line


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--limit", type=click.IntRange(0), default=1024, show_default=True, help="Blocks on the map; 0 shows all."
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture, .png or .svg.")
@json_option
def inspect(file: Path, limit: int, plot: Path | None, as_json: bool) -> None:
    """Show who has which block in FILE, and what is shared.

    FILE is what Snapshot.of(cache).write(FILE) wrote in a running program, or a file of KVCache.save.
    """
    pictures = drawing(plot, None)
    shot = Snapshot.of_file(file)
    if plot:
        from pagedcache.inspection.pictures import picture

        pictures.save(picture(shot), plot)
    if as_json:
        click.echo(json.dumps({"counts": shot.counts(), "runs": _runs(shot)}))
        return
    print_facts(_facts(shot))
    click.echo("\n" + "\n".join(block_letters(shot, limit or None)))
    if limit and limit < shot.num_blocks:
        click.echo(f"and {shot.num_blocks - limit} more; --limit 0 shows all")
    click.echo(". free   c cached   1-9 how many have it, + ten or more\n")
    print_tree(_tree(shot))


def _facts(shot: Snapshot) -> list[tuple[str, str]]:
    return [
        ("blocks", f"{shot.num_blocks} of {shot.block_size} tokens"),
        ("used", f"{shot.used}, of which {shot.shared} are shared"),
        ("cached", str(shot.cached)),
        ("free", str(shot.free)),
        ("sequences", str(len(shot.sequences))),
        ("utilisation", f"{100 * shot.utilisation:.1f} % of the sequences' blocks hold a token"),
    ]


def _tree(shot: Snapshot) -> Tree:
    lengths = {each.name: each.length for each in shot.sequences}
    tree = Tree("sequences")
    waiting = [(tree, run) for run in reversed(sharing(shot))]
    while waiting:
        branch, run = waiting.pop()
        twig = branch.add(escape(_line(run, lengths)))
        waiting += [(twig, each) for each in reversed(run.branches)]
    return tree


def _line(run: Run, lengths: dict[str, int]) -> str:
    """Which blocks, and whose."""
    ends = f"{run.blocks[0]}" if len(run.blocks) == 1 else f"{run.blocks[0]}..{run.blocks[-1]}"
    if len(run.sequences) == 1:
        name = run.sequences[0]
        whose = f"sequence {name}, {lengths[name]} tokens"
    else:
        more = f" and {len(run.sequences) - NAMES} more" if len(run.sequences) > NAMES else ""
        whose = f"{len(run.sequences)} sequences: {', '.join(run.sequences[:NAMES])}{more}"
    return f"{count(len(run.blocks), 'block')} ({ends}) of {whose}"


def _runs(shot: Snapshot) -> list[dict[str, object]]:
    """All runs, each with the number of the one that it branches off, or None."""
    runs: list[dict[str, object]] = []
    waiting: list[tuple[Run, int | None]] = [(run, None) for run in reversed(sharing(shot))]
    while waiting:
        run, parent = waiting.pop()
        waiting += [(branch, len(runs)) for branch in reversed(run.branches)]
        runs.append({"first": run.first, "blocks": run.blocks, "sequences": run.sequences, "parent": parent})
    return runs
