"""``pagedcache replay serve``: how an engine serves a trace, on a simulated machine or with a real model."""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Literal

import click
from threadpoolctl import threadpool_limits

from pagedcache._sizes import readable
from pagedcache.cache import KVCache
from pagedcache.cli.loading import load
from pagedcache.cli.options import backend_of, block_size_option, find_trace, read_size, run_options, shape_of
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
from pagedcache.replay import Served, SimulatedModel, Trace, replay_serve

__all__ = ["serve"]


@click.command()
@click.argument("trace", default="azure-conversation")
@click.option(
    "--memory", metavar="SIZE", callback=read_size, default="12 GiB", show_default=True, help="What K and V may take."
)
@click.option("--max-length", type=click.IntRange(2), help="Longest legal sequence; longer requests are left out.")
@block_size_option
@click.option("--requests", type=click.IntRange(1), default=1000, show_default=True, help="The first so many.")
@click.option(
    "--speed",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="How many times faster requests come than in the trace.",
)
@click.option("--step-tokens", type=click.IntRange(1), default=2048, show_default=True, help="Prompt tokens of a step.")
@click.option(
    "--preemption",
    type=click.Choice(["recompute", "never"]),
    default="recompute",
    show_default=True,
    help="What happens when blocks run out.",
)
@click.option("--sequences", type=click.IntRange(1), default=256, show_default=True, help="That may run at once.")
@click.option("--real", is_flag=True, help="Run a real model, SmolLM2 or --model's, in real time.")
@machine_options
@click.option(
    "--tflops",
    type=click.FloatRange(0, min_open=True),
    default=156.0,
    show_default=True,
    help="10^12 operations in a second: half of an A100's 312.",
)
@common_options
@run_options
def serve(
    trace: str,
    memory: int,
    max_length: int | None,
    block_size: int,
    requests: int,
    speed: float,
    step_tokens: int,
    preemption: str,
    sequences: int,
    real: bool,
    weights: int | None,
    bandwidth: int,
    tflops: float,
    model: Path | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    dtype: str,
    as_json: bool,
    plot: Path | None,
    html: Path | None,
    backend: str,
    threads: int | None,
) -> None:
    """Serve the requests of a trace as they come, and tell how long they waited.

    The engine, its cache and its index are the real ones. The model is simulated: it computes nothing and moves a
    clock, by what a machine would take. With --real it is a real one, on --backend and --threads. A trace that tells
    which blocks of its prompts are alike is served twice, with prefixes shared and apart.
    """
    pictures = drawing(plot, html)
    given = find_trace(trace)
    screen = Screen(quiet=as_json)
    if real:
        if not (layers is kv_heads is head_dim is weights is None):
            raise click.UsageError("--real takes its sizes from the model: leave out --layers, --kv-heads and the like")
        _, runner, _ = load(model, screen)
        spec = runner.cache_spec(dtype=dtype, block_size=block_size)
        limit = min(max_length or runner.config.context, runner.config.context)
        machine = "this one, in real time"
    else:
        shape = shape_of(model, layers, kv_heads, head_dim, default=OPT_13B)
        spec = shape.cache_spec(dtype=dtype, block_size=block_size)
        weights = weights_of(weights, model)
        limit = max_length or longest_legal(given)
        machine = f"{weights / 1e9:.1f} GB of weights, {bandwidth / 1e12:.3f} TB/s, {tflops:g} TFLOP/s"
    chosen = given.select(requests, max_length=limit)

    def run(name: str, share: bool) -> Served:
        simulated = None
        if weights is not None:
            simulated = SimulatedModel(
                limit, weights, spec.bytes_per_token, bandwidth=float(bandwidth), flops=tflops * 1e12
            )
        storage: Literal["metadata"] | None = "metadata" if simulated else None
        where = backend_of(backend, threads)
        with KVCache(spec, memory=memory, storage=storage, max_sequences=sequences, backend=where) as cache:
            return replay_serve(
                chosen,
                simulated or runner,
                cache,
                clock=None if simulated else perf_counter,
                speed=speed,
                progress=lambda done: screen.serve(name, done, len(chosen)),
                step_tokens=step_tokens,
                preemption=preemption,
                share_prefixes=share,
            )

    with threadpool_limits(threads, "blas"), screen:
        runs = {name: run(name, share) for name, share in _ways(chosen).items()}
    facts = [
        ("requests", f"{len(chosen):,} of {len(given):,} in {given.name}, {speed:g} times as fast as they came"),
        ("tokens", f"prompts {chosen.prompts.mean():.0f} and answers {chosen.outputs.mean():.0f} on average"),
        ("longest legal", f"{limit:,} tokens"),
        ("memory", f"{readable(memory)}, a token takes {spec.bytes_per_token:,} bytes ({dtype})"),
        ("machine", machine),
    ]
    table = _table(runs)
    figures = {
        "trace": chosen.summary(),
        "speed": speed,
        "max_length": limit,
        "memory": memory,
        "bytes_per_token": spec.bytes_per_token,
        "block_size": block_size,
        "runs": {name: served.figures() for name, served in runs.items()},
    }
    tell(facts, table, figures, as_json=as_json)
    if plot or html:
        from pagedcache.replay.serving_pictures import serving_course

        if plot:
            pictures.save(serving_course(runs), plot)
        if html:
            from pagedcache.replay.report import Section, html_page

            sections = [
                Section("Workload", table=[("what", "value"), *facts]),
                Section("How it was served", "Times are medians and 99th percentiles.", table, serving_course(runs)),
            ]
            html.write_text(html_page(f"Replay of serving: {given.name}", sections), encoding="utf-8")


def _ways(trace: Trace) -> dict[str, bool]:
    """Return names of runs, and whether prefixes are shared in them."""
    return {"paged": True} if trace.blocks is None else {"prefixes shared": True, "prefixes apart": False}


def _table(runs: Mapping[str, Served]) -> list[list[str]]:
    head = ["run", "served", "minutes", "tokens/s", "found", "batch", "in use", "preempted"]
    rows = [[*head, "first token p50", "p99", "a token p50", "p99"]]
    for name, served in runs.items():
        figures = served.figures()
        waits = [_time(figures[f"first_token_p{q}"]) for q in (50, 99)]
        paces = [_time(figures[f"per_token_p{q}"]) for q in (50, 99)]
        found = 100 * served.found_tokens / served.prompt_tokens if served.prompt_tokens else 0.0
        rows.append(
            [
                name,
                f"{served.requests - served.refused:,}",
                f"{served.seconds / 60:.1f}",
                f"{served.tokens_per_second:.0f}",
                f"{found:.1f} %",
                f"{served.batch:.1f}",
                f"{100 * served.utilisation:.1f} %",
                f"{served.preemptions:,}",
                *waits,
                *paces,
            ]
        )
    return rows


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
