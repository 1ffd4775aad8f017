"""``pagedcache replay prefix``: how much of the prompts a prefix cache finds."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from pagedcache.cli.options import find_trace, shape_of
from pagedcache.cli.replay_common import OPT_13B, common_options, drawing, tell
from pagedcache.cli.screen import Screen
from pagedcache.replay import POLICIES, HitRate, capacities, replay_prefix
from pagedcache.replay.prefix import TTLS

__all__ = ["prefix"]


@click.command()
@click.argument("trace", default="mooncake-conversation")
@click.option(
    "--policy",
    "policies",
    type=click.Choice(POLICIES),
    multiple=True,
    default=("lru", "belady"),
    show_default=True,
    help="What gives way; may be given several times. belady is the bound, which knows the future.",
)
@click.option(
    "--capacity",
    "tokens",
    type=click.IntRange(1),
    multiple=True,
    help="Tokens that the cache holds; may be given several times. A series up to the whole trace if not given.",
)
@click.option(
    "--ttl",
    "ttls",
    type=click.FloatRange(0),
    nargs=2,
    default=TTLS,
    show_default=True,
    help="For priority-ttl: seconds that idle blocks live, of new prompts and of those that go on.",
)
@click.option("--requests", type=click.IntRange(1), help="Replay only the first ones.")
@click.option(
    "--skip",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="Share of the requests that only fill the cache.",
)
@click.option(
    "--block-size", type=click.IntRange(1), help="Tokens of the trace's blocks; 16 of Qwen's, else 512 if not given."
)
@common_options
def prefix(
    trace: str,
    policies: tuple[str, ...],
    tokens: tuple[int, ...],
    ttls: tuple[float, float],
    requests: int | None,
    skip: float,
    block_size: int | None,
    model: Path | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    dtype: str,
    as_json: bool,
    plot: Path | None,
    html: Path | None,
) -> None:
    """Tell how much of the prompts a prefix cache finds, by its capacity and policy.

    The trace has to tell which blocks of the prompts are alike, as those of Mooncake and Qwen do.
    """
    pictures = drawing(plot, html)
    spec = shape_of(model, layers, kv_heads, head_dim, default=OPT_13B).cache_spec(dtype=dtype)
    given = find_trace(trace, block_size)
    chosen = given if requests is None else given.first(requests)
    sizes = capacities(chosen)  # refuses a trace without blocks
    if tokens:
        sizes = sorted({max(1, count // (chosen.block_size or 1)) for count in tokens})
    policies = tuple(dict.fromkeys(policies))
    with Screen(quiet=as_json) as screen:
        rates = replay_prefix(
            chosen,
            sizes,
            policies,
            skip=skip,
            ttls=ttls,
            progress=lambda policy, size, done: screen.serve(f"{policy} {size}", done, len(chosen)),
        )
    skipped = f", after {100 * skip:.0f} % of the requests" if skip else ""
    facts = [
        ("requests", f"{len(chosen):,} of {len(given):,} in {given.name}"),
        ("blocks", f"{chosen.num_accesses:,} of {chosen.block_size} tokens, {chosen.num_blocks:,} different"),
        ("counted", f"{rates[0].tokens:,} tokens of prompts{skipped}"),
        ("a token takes", f"{spec.bytes_per_token:,} bytes ({dtype})"),
    ]
    table = _rate_table(rates, policies, spec.bytes_per_token)
    results = [asdict(rate) | {"token_rate": rate.token_rate, "block_rate": rate.block_rate} for rate in rates]
    figures = {
        "trace": chosen.summary(),
        "skip": skip,
        "ttls": ttls,
        "bytes_per_token": spec.bytes_per_token,
        "hit_rates": results,
    }
    tell(facts, table, figures, as_json=as_json)
    if plot:
        pictures.save(pictures.hit_rate_curves(rates, bytes_per_token=spec.bytes_per_token), plot)
    if html:
        from pagedcache.replay.report import Section, html_page

        figure = pictures.hit_rate_curves(rates, bytes_per_token=spec.bytes_per_token)
        text = "Share of the prompts' tokens that were found in the prefix cache, by its capacity."
        sections = [Section("Workload", table=[("what", "value"), *facts]), Section("Hit rate", text, table, figure)]
        html.write_text(html_page(f"Replay of prefixes: {given.name}", sections), encoding="utf-8")


def _rate_table(rates: Sequence[HitRate], policies: Sequence[str], bytes_per_token: int) -> list[list[str]]:
    found = {(rate.policy, rate.capacity_tokens): rate.token_rate for rate in rates}
    rows = [["tokens", "blocks", "GiB", *policies]]
    for tokens, blocks in dict.fromkeys((rate.capacity_tokens, rate.capacity_blocks) for rate in rates):
        size = f"{tokens * bytes_per_token / 2**30:,.1f}"
        rows.append([f"{tokens:,}", f"{blocks:,}", size, *(f"{found[policy, tokens]:.4f}" for policy in policies)])
    return rows
