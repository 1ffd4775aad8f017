"""``pagedcache scenarios``: what four workloads take of memory, beside a contiguous cache."""

import json
from pathlib import Path

import click
from rich.text import Text

from pagedcache.cli.loading import load
from pagedcache.cli.options import RUNS, FileOrName, block_size_option, json_option, model_option
from pagedcache.cli.screen import Screen
from pagedcache.cli.tables import print_table
from pagedcache.sizing import SCENARIOS, Holding, measure, measure_beams


@click.command()
@block_size_option
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the beams' parents.")
@model_option(f"{RUNS}: the beams are those that it finds, instead of random ones.", FileOrName)
@json_option
def scenarios(block_size: int, seed: int, model: Path | None, as_json: bool) -> None:
    """Measure what one sequence, ten short ones, beams and a mixture take of memory.

    The sequences run on a real cache, and its blocks are counted at the fullest moment. The contiguous cache is
    computed, by the reservation that stands beside it.
    """
    found = _beams_of(model, block_size) if model is not None else None
    held = [
        found if found is not None and scenario.beams > 1 else measure(scenario, block_size=block_size, seed=seed)
        for scenario in SCENARIOS
    ]
    if as_json:
        click.echo(json.dumps({"block_size": block_size, "scenarios": [_as_dict(each) for each in held]}))
        return
    table: list[list[str | Text]] = [["workload", "contiguous", "paged", "saved"]]
    for each in held:
        scenario = each.scenario
        base = f"100 % is {scenario.base_tokens} tokens {scenario.base}"
        measured = each.contiguous_percent, each.paged_percent, each.saved_percent
        cells = [f"{own:.0f} %\n({said} %)" for own, said in zip(measured, scenario.claimed, strict=True)]
        table.append([Text.assemble((scenario.name, "bold"), f"\n{_workload(each)}\n{base}"), *cells])
    print_table(table)
    click.echo(f"\nBlocks of {block_size} tokens. In brackets: what the tutorial says, which states no lengths.")


def _beams_of(model: Path, block_size: int) -> Holding:
    screen = Screen(quiet=True)
    path, runner, tokenizer = load(model, screen)
    (scenario,) = (scenario for scenario in SCENARIOS if scenario.beams > 1)
    return measure_beams(scenario, runner, tokenizer, name=path.name, block_size=block_size)


def _workload(held: Holding) -> str:
    return f"{held.scenario.workload}; {held.parents}" if held.parents else held.scenario.workload


def _as_dict(held: Holding) -> dict[str, object]:
    scenario = held.scenario
    return {
        "scenario": scenario.name,
        "workload": _workload(held),
        "base": scenario.base,
        "base_tokens": scenario.base_tokens,
        "contiguous_tokens": scenario.contiguous_tokens,
        "blocks": held.blocks,
        "paged_tokens": held.paged_tokens,
        "copies": held.copies,
        "contiguous_percent": held.contiguous_percent,
        "paged_percent": held.paged_percent,
        "saved_percent": held.saved_percent,
        "claimed_percent": dict(zip(("contiguous", "paged", "saved"), scenario.claimed, strict=True)),
    }
