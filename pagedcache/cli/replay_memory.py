"""``pagedcache replay memory``: what a memory holds under load, by how it is divided."""

from collections.abc import Sequence
from pathlib import Path

import click

from pagedcache._sizes import readable
from pagedcache.cli.options import find_trace, read_size, shape_of
from pagedcache.cli.replay_common import (
    OPT_13B,
    common_options,
    drawing,
    longest_legal,
    machine_options,
    tell,
    weights_of,
)
from pagedcache.cli.screen import Screen
from pagedcache.replay import Machine, Usage, replay_memory
from pagedcache.spec import MAX_BLOCK_SIZE

__all__ = ["memory"]

KINDS = (
    "Every slot, the room for K and V of one token, is one of: stored, a token is there; reserved, handed out for a "
    "token that will come; internal, handed out and never used; rounding, given beyond what was asked for; external, "
    "not handed out."
)


@click.command()
@click.argument("trace", default="sharegpt")
@click.option(
    "--memory", metavar="SIZE", callback=read_size, default="12 GiB", show_default=True, help="What K and V may take."
)
@click.option("--max-length", type=click.IntRange(1), help="Longest legal sequence; longer requests are left out.")
@click.option(
    "--block-size",
    "block_sizes",
    type=click.IntRange(1, MAX_BLOCK_SIZE),
    multiple=True,
    default=(16,),
    show_default=True,
    help="Tokens per block of a paged system; may be given several times.",
)
@click.option("--requests", type=click.IntRange(1), default=4000, show_default=True, help="How many to serve.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="Draw them at random; as of a trace without times, with seed 0. Otherwise the first ones are taken.",
)
@machine_options
@common_options
def memory(
    trace: str,
    memory: int,
    max_length: int | None,
    block_sizes: tuple[int, ...],
    requests: int,
    seed: int | None,
    weights: int | None,
    bandwidth: int,
    model: Path | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    dtype: str,
    as_json: bool,
    plot: Path | None,
    html: Path | None,
) -> None:
    """Tell what a memory holds under load, reserved in one piece for each sequence, and in blocks.

    All requests wait from the beginning on. What is stored, reserved and lost is the mean over the steps in which the
    memory was short; throughput is that of a machine that only reads weights, K and V.
    """
    pictures = drawing(plot, html)
    spec = shape_of(model, layers, kv_heads, head_dim, default=OPT_13B).cache_spec(dtype=dtype)
    machine = Machine(weights_of(weights, model), spec.bytes_per_token, float(bandwidth))
    given = find_trace(trace)
    limit = max_length or longest_legal(given)
    seed = 0 if seed is None and given.arrivals is None else seed
    chosen = given.select(requests, max_length=limit, seed=seed)
    slots = memory // spec.bytes_per_token
    if slots < 1:
        raise ValueError(f"--memory is {memory} bytes; a token takes {spec.bytes_per_token}")
    with Screen(quiet=as_json) as screen:
        usages = replay_memory(
            chosen,
            slots,
            limit,
            block_sizes=block_sizes,
            progress=lambda system, done: screen.serve(system, done, len(chosen)),
        )
    facts = [
        ("requests", f"{len(chosen):,} of {len(given):,} in {given.name}{'' if seed is None else f', seed {seed}'}"),
        ("tokens", f"prompts {chosen.prompts.mean():.0f} and answers {chosen.outputs.mean():.0f} on average"),
        ("longest legal", f"{limit:,} tokens"),
        ("memory", f"{readable(memory)}: {slots:,} slots of {spec.bytes_per_token:,} bytes ({dtype})"),
        ("machine", f"{machine.weights_nbytes / 1e9:.1f} GB of weights, {machine.bandwidth / 1e12:.3f} TB/s"),
    ]
    table = _usage_table(usages, machine)
    figures = {
        "trace": chosen.summary(),
        "seed": seed,
        "max_length": limit,
        "memory": memory,
        "bytes_per_token": spec.bytes_per_token,
        "weights_nbytes": machine.weights_nbytes,
        "bandwidth": machine.bandwidth,
        "systems": [usage.figures() | {"tokens_per_second": machine.throughput(usage)} for usage in usages],
    }
    tell(facts, table, figures, as_json=as_json)
    if plot:
        pictures.save(pictures.overview(usages, machine), plot)
    if html:
        from pagedcache.replay.report import Section, html_page

        sections = [
            Section("Workload", table=[("what", "value"), *facts]),
            Section("What the memory held", KINDS, table, pictures.waste_by_kind(usages, machine)),
            Section(
                "Over time",
                "All systems serve the same requests, and a line ends when none of them waits any more. Time is that "
                "of a machine that only reads weights, K and V.",
                figure=pictures.usage_over_time(usages, machine),
            ),
            Section(
                "Block map",
                "The whole memory when a third of the requests was done. Neighbouring sequences have different shades.",
                figure=pictures.block_map(usages),
            ),
        ]
        html.write_text(html_page(f"Replay of memory: {given.name}", sections), encoding="utf-8")


def _usage_table(usages: Sequence[Usage], machine: Machine) -> list[list[str]]:
    head = "system stored reserved internal rounding external in-use batch preempted tokens/s".split()
    rows = [head]
    for usage in usages:
        shares = (usage.stored, usage.reserved, usage.internal, usage.rounding, usage.external, usage.stored_of_handed)
        numbers = [f"{usage.batch:.2f}", f"{usage.preemptions}", f"{machine.throughput(usage):.0f}"]
        rows.append([usage.system, *(f"{100 * share:.1f} %" for share in shares), *numbers])
    return rows
