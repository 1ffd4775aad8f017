"""``pagedcache chat``: a conversation that finds its earlier turns in the prefix cache."""

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from threadpoolctl import threadpool_limits

from pagedcache import serving
from pagedcache.cache import KVCache
from pagedcache.cli.loading import load
from pagedcache.cli.options import backend_of, cache_options, kept_in, run_options, sampling_options, tier_options
from pagedcache.cli.report import chat_summary, turn_note
from pagedcache.cli.screen import Screen
from pagedcache.errors import OutOfBlocks

_COMMANDS = "/reset, /stats and /quit"


@click.command()
@click.option("--system", metavar="TEXT", help="The system message.")
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True, help="Most tokens per answer.")
@sampling_options
@cache_options
@run_options
@tier_options
@click.option("--quiet", is_flag=True, help="Print the answers and nothing else.")
def chat(
    system: str | None,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    model: Path | None,
    block_size: int,
    dtype: str,
    memory: int,
    backend: str,
    threads: int | None,
    cache_dir: Path | None,
    cache_size: int,
    quiet: bool,
) -> int:
    """Talk with the model, a line at a time.

    Answers go to standard output as they come. After each, standard error says how many tokens of the conversation
    were found in the prefix cache and needed no computing. Lines come from standard input, a terminal or not.

    \b
    /reset  begin anew
    /stats  what the conversation and the cache hold
    /quit   end; so does the end of the input
    """
    screen = _screen(quiet)
    path, runner, tokenizer = load(model, screen)
    spec, tiers = kept_in(cache_dir, cache_size, runner.cache_spec(dtype=dtype, block_size=block_size), path)
    with (
        threadpool_limits(threads, "blas"),
        KVCache(spec, memory=memory, max_sequences=1, backend=backend_of(backend, threads), tiers=tiers) as cache,
    ):
        sampling = serving.Sampling(temperature, top_k, top_p, seed)
        conversation = serving.Conversation(
            runner, tokenizer, cache, system=system, max_tokens=max_tokens, sampling=sampling
        )
        if sys.stdin.isatty():
            screen.note(f"{path.name}, up to {conversation.capacity} tokens; commands are {_COMMANDS}")
        refused = False
        for line in _lines():
            if line == "/quit":
                break
            elif line == "/reset":
                conversation.reset()
                screen.note("a new conversation")
            elif line == "/stats":
                screen.table(chat_summary(conversation, cache))
            elif re.fullmatch(r"/\w+", line):
                click.echo(f"{line} is no command; there are {_COMMANDS}", err=True)
            else:
                refused |= not _answer(conversation, line, max_tokens, quiet)
    return int(refused and not sys.stdin.isatty())


def _answer(conversation: serving.Conversation, line: str, max_tokens: int, quiet: bool) -> bool:
    """Print the answer to a line as it comes; False, after a message, where there is none."""
    try:
        with _screen(quiet) as screen:
            turn = conversation.say(line, on_text=screen.text, on_prefill=screen.prefill)
    except (ValueError, OutOfBlocks) as error:
        click.echo(f"pagedcache: {error}", err=True)
        return False
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        click.echo("\n(interrupted; this message and its answer are forgotten)", err=True)
        return False
    screen.note(turn_note(turn, max_tokens))
    return True


def _screen(quiet: bool) -> Screen:
    return Screen([""], quiet=quiet, texts=True)


def _lines() -> Iterator[str]:
    """Yield the lines of standard input that hold something, stripped."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  lets input() edit and recall lines
        try:
            while True:
                if line := input("> ").strip():
                    yield line
        except EOFError:
            click.echo(err=True)  # the shell's prompt on a line of its own
    else:
        yield from filter(None, map(str.strip, sys.stdin))
