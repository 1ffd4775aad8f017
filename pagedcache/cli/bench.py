"""``pagedcache bench``: how fast this machine is."""

import dataclasses
import json
from pathlib import Path

import click
from threadpoolctl import threadpool_limits

from pagedcache import serving
from pagedcache.cache import KVCache
from pagedcache.cli.loading import load
from pagedcache.cli.options import backend_of, cache_options, run_options
from pagedcache.cli.report import decode_summary
from pagedcache.cli.screen import Screen


@click.group()
def bench() -> None:
    """Measure on this machine."""


@bench.command("model")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Sequences of a step.")
@click.option("--context", type=click.IntRange(1), default=2048, show_default=True, help="Tokens of each before it.")
@click.option("--steps", type=click.IntRange(1), default=32, show_default=True, help="Decode steps to measure.")
@cache_options
@run_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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
    screen = Screen(labels=[""], quiet=as_json, texts=False)
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
    for name, value in decode_summary(profile):
        click.echo(f"{name:<12}{value}")
