"""Options that several commands have."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from pagedcache.backends import Backend, HasThreads, get
from pagedcache.replay import SHIPPED, Trace, read_trace, shipped_trace
from pagedcache.serving.models import model_fingerprint
from pagedcache.serving.models.gemma_file import GEMMA_NAME
from pagedcache.sizing import ModelShape, read_shape
from pagedcache.spec import MAX_BLOCK_SIZE, CacheSpec, parse_bytes
from pagedcache.tiers import DiskTier, Tier

Command = TypeVar("Command", bound=Callable[..., Any])

RUNS = f"A GGUF file of architecture llama or gemma3, or {GEMMA_NAME}, which the extra gemma installs"
BEAM_BLOCK_SIZE = 8  # tokens: beams share whole blocks, so more of smaller ones


def read_size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Return the bytes that an option's value such as ``512 MiB`` stands for."""
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


memory_option = click.option(
    "--memory", metavar="SIZE", callback=read_size, default="512 MiB", show_default=True, help="What K and V may take."
)
dtype_option = click.option("--dtype", default="float32", show_default=True, help="What K and V are stored as.")
block_size_option = click.option(
    "--block-size", type=click.IntRange(1, MAX_BLOCK_SIZE), default=16, show_default=True, help="Tokens per block."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
trace_option = click.option(
    "--trace",
    metavar="TRACE",
    default="sharegpt",
    show_default=True,
    help="Whose lengths to take: a file or a name; see pagedcache replay --help.",
)


def find_trace(name: str, block_size: int | None = None) -> Trace:
    """Return the trace of that name that comes with the package, or read the file."""
    if name in SHIPPED:
        return shipped_trace(name)
    if not Path(name).exists():
        raise ValueError(f"{name} is no file, and none of the traces that come with the package: {', '.join(SHIPPED)}")
    return read_trace(name, block_size=block_size)


class FileOrName(click.Path):
    """A model's file, or the name of one that `find_model` knows."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, which a name is not yet."""
        return Path(value) if value == GEMMA_NAME else super().convert(value, param, ctx)


def model_option(what: str, kind: type[click.Path] = click.Path) -> Callable[[Command], Command]:
    """Return the option that names a model's file."""
    return click.option("--model", type=kind(exists=True, dir_okay=False, path_type=Path), help=what)


def cache_options(command: Command) -> Command:
    """Add the options that shape a cache for a model that is run."""
    for option in (
        memory_option,
        dtype_option,
        block_size_option,
        model_option(f"{RUNS}; SmolLM2-135M-Instruct, fetched once, if not given.", FileOrName),
    ):
        command = option(command)
    return command


def shape_options(command: Command) -> Command:
    """Add the options that give a model's sizes."""
    for option in (
        click.option("--head-dim", type=click.IntRange(1), help="Size of a head."),
        click.option("--kv-heads", type=click.IntRange(1), help="Key/value heads."),
        click.option("--layers", type=click.IntRange(1), help="Layers, instead of a model file."),
        model_option("A GGUF file, or a Hugging Face config.json."),
    ):
        command = option(command)
    return command


def shape_of(
    model: Path | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    *,
    default: ModelShape | None = None,
) -> ModelShape:
    """Return the sizes that these options give."""
    if layers is not None and kv_heads is not None and head_dim is not None and model is None:
        return ModelShape(layers, kv_heads, kv_heads, head_dim, head_dim)
    if layers is kv_heads is head_dim is None:
        if model is not None:
            return read_shape(model)
        if default is not None:
            return default
    raise click.UsageError("give either --model, or all of --layers, --kv-heads and --head-dim")


def sampling_options(command: Command) -> Command:
    """Add the options that say how tokens are chosen."""
    for option in (
        click.option("--seed", type=click.IntRange(0), help="Makes the choices repeatable."),
        click.option(
            "--top-p", type=click.FloatRange(0, 1, min_open=True), help="Choose among the likeliest p of the mass."
        ),
        click.option("--top-k", type=click.IntRange(1), help="Choose among the k most likely tokens."),
        click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0 is greedy."),
    ):
        command = option(command)
    return command


def backend_of(name: str, threads: int | None) -> Backend:
    """Return the backend of that name, with so many threads if it has threads of its own."""
    backend = get(name)
    return backend.with_threads(threads) if threads is not None and isinstance(backend, HasThreads) else backend


def tier_options(command: Command) -> Command:
    """Add the options that keep a cache from one call to the next."""
    for option in (
        click.option(
            "--cache-size",
            metavar="SIZE",
            callback=read_size,
            default="4 GiB",
            show_default=True,
            help="What the folder of --cache-dir may take.",
        ),
        click.option(
            "--cache-dir",
            type=click.Path(file_okay=False, path_type=Path),
            help=(
                "Keep keys and values in this folder too, and find there what earlier calls have computed; it holds "
                "what was said, in the clear."
            ),
        ),
    ):
        command = option(command)
    return command


def kept_in(folder: Path | None, size: int, spec: CacheSpec, model: Path) -> tuple[CacheSpec, list[Tier]]:
    """Return the spec and the tiers of a cache that is kept in a folder, or in none."""
    if folder is None:
        return spec, []
    return replace(spec, fingerprint=model_fingerprint(model)), [DiskTier(folder, size)]


def run_options(command: Command) -> Command:
    """Add the options that say where the work is done."""
    for option in (
        click.option(
            "--threads",
            type=click.IntRange(1, 1024),
            help=(
                "Threads of BLAS and of the backend's kernels; their own choice if not given. 1 is often faster where "
                "other programs keep the cores busy."
            ),
        ),
        click.option(
            "--backend",
            metavar="NAME",
            default="cpu",
            show_default=True,
            help="Where K and V live and attention is computed.",
        ),
    ):
        command = option(command)
    return command
