"""``pagedcache generate``: a real model writes text on a paged cache."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
from threadpoolctl import threadpool_limits

from pagedcache import serving
from pagedcache.cache import KVCache
from pagedcache.cli.options import cache_options
from pagedcache.cli.screen import Screen
from pagedcache.serving.models import find_model, load_model


@click.command()
@click.argument("prompts", nargs=-1, required=True, metavar="PROMPT...")
@click.option("-n", "--n", type=click.IntRange(1), default=1, show_default=True, help="Texts per prompt.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Most tokens per text.")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=click.IntRange(1), help="Choose among the k most likely tokens.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Choose among the likeliest p of the mass.")
@click.option("--seed", type=click.IntRange(0), help="Makes the choices repeatable.")
@click.option("--chat/--raw", default=None, help="Answer the prompts, or continue them. Answers, if the model can.")
@click.option("--system", metavar="TEXT", help="The system message of a chat.")
@cache_options
@click.option("--backend", metavar="NAME", help="Where K and V live and attention is computed.")
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="Threads of BLAS; its own choice if not given. 1 is often faster where other programs keep the cores busy.",
)
@click.option("--quiet", is_flag=True, help="Print the texts and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def generate(
    prompts: tuple[str, ...],
    n: int,
    max_tokens: int,
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
    backend: str | None,
    threads: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write a text for each PROMPT, all of them at once; "-" reads one from standard input.

    Text goes to standard output as it comes; progress and a report of what the cache held go to standard error.
    """
    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    screen = Screen(labels=_labels(texts, n), quiet=quiet or as_json, texts=not as_json)
    with screen.download() as progress:
        path = find_model(model, progress=progress)
    with screen.waiting("loading the model"):
        runner, tokenizer = load_model(path)
    if chat is None:
        chat = tokenizer.can_chat
    roles = [("system", system)] if system is not None else []
    ids = [tokenizer.chat([*roles, ("user", text)]) if chat else tokenizer.encode(text) for text in texts]
    options: dict[str, Any] = {} if backend is None else {"backend": backend}
    spec = runner.cache_spec(dtype=dtype, block_size=block_size)
    rows = max(n, min(n * len(ids), 256))
    with (
        threadpool_limits(threads, "blas"),
        KVCache(spec, memory=memory, max_sequences=rows, **options) as cache,
        screen,
    ):
        result = serving.generate(
            runner,
            tokenizer,
            ids,
            cache,
            n=n,
            max_tokens=max_tokens,
            sampling=serving.Sampling(temperature, top_k, top_p, seed),
            on_text=screen.text,
            on_prefill=screen.prefill,
        )
    if as_json:
        click.echo(json.dumps(_plain(path, texts, result), ensure_ascii=False))
    elif not quiet:
        screen.table(_summary(result.report, max_tokens))


def _labels(texts: list[str], n: int) -> list[str]:
    """Return what tells each text of several from the others; one text needs no label."""
    if len(texts) * n == 1:
        return [""]
    heads = [" ".join(text.split())[:60] for text in texts]
    return [f"{head} ({sample} of {n})" if n > 1 else head for head in heads for sample in range(1, n + 1)]


def _summary(report: serving.Report, max_tokens: int) -> list[tuple[str, str]]:
    """Return the report as names and values."""
    peak = report.peak
    rates = []
    if report.prefill_seconds:
        computed = report.prompt_tokens - report.reused_tokens
        rates.append(f"{computed / report.prefill_seconds:.0f} prompt tokens a second")
    if report.decode_seconds:
        rates.append(f"{report.decode_tokens / report.decode_seconds:.1f} new tokens a second")
    return [
        (
            "prompts",
            f"{_count(report.prompt_tokens, 'token')}, {report.reused_tokens} of them found in the prefix cache",
        ),
        ("texts", _count(report.new_tokens, "token")),
        ("speed", ", then ".join(rates)),
        ("stored", f"{_count(peak.tokens, 'token')} of {_count(peak.sequences, 'sequence')}, at the fullest moment"),
        (
            "blocks",
            f"{peak.blocks}, with room for {report.spec.block_size} tokens each; {peak.shared} of them shared "
            f"({peak.blocks_alone} if nothing were), {report.copied} copied",
        ),
        ("memory", f"{_mib(report.paged_nbytes)} in blocks"),
        (
            "contiguous",
            f"{_mib(report.contiguous_nbytes)} if each sequence reserves its prompt and {max_tokens} tokens, "
            f"{_mib(report.context_nbytes)} if it reserves the model's {report.context}",
        ),
    ]


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


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
