"""``pagedcache cache``: look at folders of a disk tier, check them, bring them to a size, copy them."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pagedcache._sizes import parse_bytes, readable
from pagedcache.cli.options import json_option
from pagedcache.cli.report import count
from pagedcache.cli.screen import Screen
from pagedcache.cli.tables import print_facts, print_table
from pagedcache.tiers.disk import DiskTier
from pagedcache.tiers.disk.upkeep import check, copy

ANY_SIZE = 2**60  # bytes: nothing has to go

folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int:
    """The bytes that ``--size`` asks for; without it, any number."""
    try:
        return ANY_SIZE if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _open(folder: Path, size: int | None = None) -> DiskTier:
    """Open a folder for the blocks that are in it: to read, or, with a size, to write."""
    form = DiskTier.format_of(folder)
    tier = DiskTier(folder, size, readonly=size is None)
    tier.bind(form)
    return tier


def _bar(screen: Screen, what: str) -> Callable[[int, int], None]:
    """How far a check or a copy is."""
    return lambda done, total: screen.serve(what, done, total)


@click.group()
def cache() -> None:
    """Look after a folder in which a disk tier keeps its blocks.

    ls and verify only read, also while another process writes there; gc and verify --repair need the folder to
    themselves.
    """


@cache.command()
@folder_argument
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="Blocks to list; 0 lists all.")
@json_option
def ls(folder: Path, limit: int, as_json: bool) -> None:
    """Tell what is in DIR: the format, how much, pins, and blocks by last use, the latest first."""
    with _open(folder) as tier:
        assert tier.form is not None
        keys, pins, stats = tier.digests(), tier.pins(), tier.stats()
        form = dataclasses.asdict(tier.form)
    names: dict[bytes, list[str]] = {}
    for name, held in pins.items():
        for key in held:
            names.setdefault(key, []).append(name)
    files = sum(file.stat().st_size for file in folder.iterdir())
    shown = keys[: limit or None]
    if as_json:
        report: dict[str, Any] = {
            "format": form,
            "blocks": len(keys),
            "nbytes": stats.nbytes,
            "files_nbytes": files,
            "pins": {name: len(held) for name, held in pins.items()},
            "by_use": [{"digest": key.hex(), "pins": names.get(key, [])} for key in shown],
        }
        click.echo(json.dumps(report))
        return
    facts = [(name.replace("_", " "), str(value)) for name, value in form.items()]
    facts += [("blocks", f"{len(keys)} in {readable(stats.nbytes)}"), ("files", readable(files))]
    facts += [(f"pin {name!r}", count(len(held), "block")) for name, held in pins.items()]
    print_facts(facts)
    if shown:
        print_table([["block, by last use", "pins"], *([key.hex(), ", ".join(names.get(key, []))] for key in shown)])
    if len(shown) < len(keys):
        click.echo(f"and {len(keys) - len(shown)} more; --limit 0 lists all")


@cache.command()
@folder_argument
@click.option("--repair", is_flag=True, help="Forget what is wrong.")
@json_option
def verify(folder: Path, repair: bool, as_json: bool) -> int:
    """Read every block in DIR and check it. The exit status is 1 if something is wrong."""
    with _open(folder, ANY_SIZE if repair else None) as tier, Screen(quiet=as_json) as screen:
        problems = tier.problems()
        right, wrong = check(tier, _bar(screen, "checking"))
    if as_json:
        report = {"right": right, "wrong": [key.hex() for key in wrong], "index": problems, "repaired": repair}
        click.echo(json.dumps(report))
    else:
        click.echo(f"{count(right, 'block')} right, {len(wrong)} wrong{', and forgotten' if repair and wrong else ''}")
        for key in wrong:
            click.echo(f"wrong: {key.hex()}")
        for problem in problems:
            click.echo(f"index: {problem}")
    return 1 if wrong or problems else 0


@cache.command()
@folder_argument
@click.option("--size", metavar="SIZE", callback=_size, help="Let the least recently used blocks go until it fits.")
def gc(folder: Path, size: int) -> None:
    """Drop what is of no use in DIR, and with --size bring it down to so much."""
    before = sum(file.stat().st_size for file in folder.iterdir()) if folder.is_dir() else 0
    with _open(folder, size) as tier:
        rows = tier.tidy()
        stats = tier.stats()
    after = sum(file.stat().st_size for file in folder.iterdir())
    click.echo(
        f"{count(stats.evicted, 'block')} evicted, {count(rows, 'row')} without a block dropped; {readable(before)} "
        f"before, {readable(after)} now, with {count(stats.blocks, 'block')}"
    )


@cache.command()
@folder_argument
@click.argument("target", metavar="TO", type=click.Path(path_type=Path))
def export(folder: Path, target: Path) -> None:
    """Copy the blocks of DIR that are right into the new folder TO, with their order of use and their pins."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise click.UsageError(f"{target} is there already; give a new folder")
    with _open(folder) as source, Screen(quiet=False) as screen:
        assert source.form is not None
        with DiskTier(target, ANY_SIZE) as fresh:
            fresh.bind(source.form)
            copied = copy(source, fresh, _bar(screen, "copying"))
        left = len(source.digests()) - copied
    click.echo(f"{count(copied, 'block')} copied, {left} left out")
