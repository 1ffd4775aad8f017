"""``pagedcache generate``: a real model writes text on a paged cache."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from threadpoolctl import threadpool_limits

from pagedcache import serving
from pagedcache.cache import KVCache
from pagedcache.cli.loading import load
from pagedcache.cli.options import (
    BEAM_BLOCK_SIZE,
    backend_of,
    cache_options,
    json_option,
    kept_in,
    run_options,
    sampling_options,
    tier_options,
)
from pagedcache.cli.report import summary
from pagedcache.cli.screen import Screen


@click.command()
@click.argument("prompts", nargs=-1, required=True, metavar="PROMPT...")
@click.option("-n", "--n", type=click.IntRange(1), default=1, show_default=True, help="Texts per prompt.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Most tokens per text.")
@click.option(
    "--beam",
    type=click.IntRange(1),
    metavar="K",
    help="Search for the likeliest texts, K at a time; in blocks of 8 tokens unless --block-size says otherwise.",
)
@click.option(
    "--length-penalty",
    type=click.FloatRange(0, 10),
    help="Of a beam search: 0 ranks texts by their log-probability, 1, the default, by its mean over the tokens.",
)
@sampling_options
@click.option("--chat/--raw", default=None, help="Answer the prompts, or continue them. Answers, if the model can.")
@click.option("--system", metavar="TEXT", help="The system message of a chat.")
@cache_options
@run_options
@tier_options
@click.option("--quiet", is_flag=True, help="Print the texts and nothing else.")
@json_option
def generate(
    prompts: tuple[str, ...],
    n: int,
    max_tokens: int,
    beam: int | None,
    length_penalty: float | None,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    chat: bool | None,
    system: str | None,
    model: Path | None,
    block_size: int,
    dtype: str,
    memory: int,
    backend: str,
    threads: int | None,
    cache_dir: Path | None,
    cache_size: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write a text for each PROMPT, all of them at once; "-" reads one from standard input.

    Text goes to standard output as it comes; progress and a report of what the cache held go to standard error.
    """
    sampling = serving.Sampling(temperature, top_k, top_p, seed)
    if beam is not None and sampling != serving.Sampling():
        raise click.UsageError("--beam draws nothing: leave out --temperature, --top-k, --top-p and --seed")
    if beam is None and length_penalty is not None:
        raise click.UsageError("--length-penalty is for a beam search: give --beam too")
    if beam is not None and n > beam:
        raise click.UsageError(f"--beam {beam} finds {beam} texts, and --n asks for {n}")
    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    screen = Screen(labels=_labels(texts, n), quiet=quiet or as_json, texts=not as_json)
    path, runner, tokenizer = load(model, screen)
    if chat is None:
        chat = tokenizer.can_chat
    roles = [("system", system)] if system is not None else []
    ids = [tokenizer.chat([*roles, ("user", text)]) if chat else tokenizer.encode(text) for text in texts]
    if beam is not None and click.get_current_context().get_parameter_source("block_size") is ParameterSource.DEFAULT:
        block_size = BEAM_BLOCK_SIZE
    spec, tiers = kept_in(cache_dir, cache_size, runner.cache_spec(dtype=dtype, block_size=block_size), path)
    rows = beam or max(n, min(n * len(ids), 256))
    with (
        threadpool_limits(threads, "blas"),
        KVCache(spec, memory=memory, max_sequences=rows, backend=backend_of(backend, threads), tiers=tiers) as cache,
        screen,
    ):
        if beam is None:
            result = serving.generate(
                runner,
                tokenizer,
                ids,
                cache,
                n=n,
                max_tokens=max_tokens,
                sampling=sampling,
                on_text=screen.text,
                on_prefill=screen.prefill,
            )
        else:
            result = serving.beam_search(
                runner,
                tokenizer,
                ids,
                cache,
                beams=beam,
                n=n,
                max_tokens=max_tokens,
                length_penalty=1.0 if length_penalty is None else length_penalty,
                on_prefill=screen.prefill,
                on_step=screen.search,
            )
            for index, completion in enumerate(result.completions):
                screen.text(index, completion.text, True)
    if as_json:
        click.echo(json.dumps(_plain(path, texts, result), ensure_ascii=False))
    elif not quiet:
        screen.table(summary(result.report, max_tokens, searched=beam is not None))


def _labels(texts: list[str], n: int) -> list[str]:
    """Return what tells each text of several from the others; one text needs no label."""
    if len(texts) * n == 1:
        return [""]
    heads = [" ".join(text.split())[:60] for text in texts]
    return [f"{head} ({sample} of {n})" if n > 1 else head for head in heads for sample in range(1, n + 1)]


def _plain(path: Path, texts: list[str], result: serving.Generation) -> dict[str, Any]:
    """Return the result as what JSON can hold."""
    report = dataclasses.asdict(result.report)
    del report["spec"]
    for name in ("paged_nbytes", "contiguous_nbytes", "context_nbytes"):
        report[name] = getattr(result.report, name)
    return {
        "model": path.name,
        "prompts": texts,
        "completions": [dataclasses.asdict(completion) for completion in result.completions],
        "report": report | {"block_size": result.report.spec.block_size},
    }
