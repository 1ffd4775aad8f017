"""``pagedcache bench``: how fast this machine is."""

import dataclasses
import json
from pathlib import Path

import click
import numpy as np
from click.core import ParameterSource
from threadpoolctl import threadpool_limits

from pagedcache import serving
from pagedcache._sizes import readable
from pagedcache.cache import KVCache
from pagedcache.cli.loading import load
from pagedcache.cli.options import backend_of, cache_options, find_trace, json_option, run_options, trace_option
from pagedcache.cli.report import decode_summary, serving_table
from pagedcache.cli.screen import Screen
from pagedcache.cli.tables import print_facts, print_table
from pagedcache.replay import Trace

SERVE_MEMORY = 64 << 20  # bytes: little, so that a small model's cache is what limits a batch


@click.group()
def bench() -> None:
    """Measure on this machine."""


@bench.command("model")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Sequences of a step.")
@click.option("--context", type=click.IntRange(1), default=2048, show_default=True, help="Tokens of each before it.")
@click.option("--steps", type=click.IntRange(1), default=32, show_default=True, help="Decode steps to measure.")
@cache_options
@run_options
@json_option
def bench_model(
    batch: int,
    context: int,
    steps: int,
    model: Path | None,
    block_size: int,
    dtype: str,
    memory: int,
    backend: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Tell where the time of a real model's decode steps goes.

    Prompts of random tokens are computed first. Then each step adds a token to every sequence; its time is told, and
    what shares of it attention and the cache's bookkeeping have. The rest is the model's own arithmetic, in NumPy.
    """
    screen = Screen(quiet=as_json)
    path, runner, _ = load(model, screen)
    spec = runner.cache_spec(dtype=dtype, block_size=block_size)
    with (
        threadpool_limits(threads, "blas"),
        KVCache(spec, memory=memory, max_sequences=batch, backend=backend_of(backend, threads)) as cache,
        screen,
    ):
        profile = serving.profile_decode(
            runner, cache, batch=batch, context=context, steps=steps, on_prefill=screen.prefill
        )
    if as_json:
        shares = ("seconds", "attention_share", "bookkeeping_share", "cache_share")
        report = dataclasses.asdict(profile) | {name: getattr(profile, name) for name in shares}
        click.echo(json.dumps({"model": path.name, "backend": backend, "dtype": dtype} | report))
        return
    print_facts(decode_summary(profile))


@bench.command("serve")
@click.option("--requests", "count", type=click.IntRange(1), default=200, show_default=True, help="Requests to serve.")
@trace_option
@click.option("--max-length", type=click.IntRange(2, 1024), default=1024, show_default=True, help="Of a sequence.")
@click.option(
    "--shared",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Tokens that all prompts begin with, besides.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws lengths and tokens.")
@click.option("--way", "ways", multiple=True, type=click.Choice(list(serving.WAYS)), help="Only this; may be repeated.")
@cache_options
@run_options
@json_option
def bench_serve(
    count: int,
    trace: str,
    max_length: int,
    shared: int,
    seed: int,
    ways: tuple[str, ...],
    model: Path | None,
    block_size: int,
    dtype: str,
    memory: int,
    backend: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Serve requests on a real model, with contiguous and with paged K/V in the same memory.

    Requests as long as those of a trace come all at once. Contiguous caches reserve the longest length for each
    sequence and serve static batches, then continuous ones; the paged cache serves with prefixes apart, then shared.
    """
    if click.get_current_context().get_parameter_source("memory") is ParameterSource.DEFAULT:
        memory = SERVE_MEMORY
    screen = Screen(quiet=as_json)
    model_path, runner, _ = load(model, screen)
    requests = _requests(find_trace(trace), count, max_length, shared, seed, runner.config.vocab)
    with threadpool_limits(threads, "blas"), screen:
        runs = serving.compare_serving(
            runner,
            requests,
            memory=memory,
            max_length=max_length,
            block_size=block_size,
            dtype=dtype,
            backend=backend_of(backend, threads),
            ways=ways or tuple(serving.WAYS),
            on_progress=screen.serve,
        )
    if as_json:
        report = [dataclasses.asdict(run) | {"tokens_per_second": run.tokens_per_second} for run in runs]
        click.echo(json.dumps({"model": model_path.name, "memory": memory, "dtype": dtype, "runs": report}))
        return
    prompt_tokens = sum(len(prompt) for prompt, _ in requests)
    click.echo(
        f"{count} requests, {prompt_tokens} prompt tokens and {runs[0].new_tokens} new ones; "
        f"{readable(memory)} for K and V in {dtype}, at most {max_length} tokens to a sequence\n"
    )
    print_table(serving_table(runs))


def _requests(
    trace: Trace, count: int, max_length: int, shared: int, seed: int, vocab: int
) -> list[tuple[list[int], int]]:
    """Draw requests of a trace, as far as they are short enough, with random tokens."""
    if shared >= max_length:
        raise click.UsageError(f"--shared {shared} leaves nothing of --max-length {max_length}")
    drawn = trace.select(count, max_length=max_length - shared, seed=seed)
    random = np.random.default_rng(seed)
    beginning = random.integers(0, vocab, shared).tolist()
    lengths = zip(drawn.prompts.tolist(), drawn.outputs.tolist(), strict=True)
    return [(beginning + random.integers(0, vocab, prompt).tolist(), output) for prompt, output in lengths]
