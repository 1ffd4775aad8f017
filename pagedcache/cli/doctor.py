"""``pagedcache doctor``: what is installed, and what runs on this machine."""

import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import numpy as np
from threadpoolctl import threadpool_info

from pagedcache.backends import Backend, HasThreads, get, names
from pagedcache.cli.options import json_option
from pagedcache.cli.tables import print_facts
from pagedcache.errors import PagedCacheError

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PARTNERS = ("torch", "ml_dtypes", "cupy")
VARIABLES = ("PAGEDCACHE_ISA", "PAGEDCACHE_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Tell what is installed here, which backends there are, and what they run on.

    A backend that cannot be used is told of, with the reason, and is no failure of this command.
    """
    report = found()
    if as_json:
        click.echo(json.dumps(report))
        return
    print_facts(_rows(report))


def found() -> dict[str, Any]:
    """Return what the report is made of."""
    return {
        "pagedcache": metadata.version("pagedcache"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "backends": {name: _backend(name) for name in names()},
        "variables": {name: os.environ.get(name) for name in VARIABLES},
        "huge_pages": _huge_pages(),
        "packages": {name: _version(name) for name in PARTNERS},
        "blas": [
            {key: library.get(key) for key in ("internal_api", "version", "num_threads", "architecture")}
            for library in threadpool_info()
            if library["user_api"] == "blas"
        ],
    }


def _backend(name: str) -> dict[str, Any]:
    """What a backend can do, or why it cannot be used."""
    try:
        backend = get(name)
    except (PagedCacheError, ValueError, OSError) as error:  # whatever it is: the others are told of too
        return {"error": " ".join(str(error).split())}
    has = backend.capabilities
    return {
        "device": backend.device,
        "dtypes": sorted(has.dtypes),
        "layouts": sorted(has.layouts),
        "variants": sorted(has.variants),
        "precisions": dict(sorted(has.precisions.items())),
        "max_block_size": has.max_block_size,
        "max_head_dim": has.max_head_dim,
        "head_dims": None if has.head_dims is None else sorted(has.head_dims),
        "threads": backend.threads if isinstance(backend, HasThreads) else None,
        "instruction_sets": _instruction_sets(backend),
    }


def _instruction_sets(backend: Backend) -> dict[str, Any] | None:
    tell = getattr(backend, "instruction_sets", None)
    return None if tell is None else dict(tell())


def _huge_pages() -> str | None:
    """The system's mode for anonymous memory, such as "madvise"; None where there is none."""
    try:
        words = HUGE_PAGES.read_text(encoding="ascii").split()
    except OSError:
        return None
    return next((word.strip("[]") for word in words if word.startswith("[")), None)


def _version(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    candidates = [package, *(f"{package}-cuda{n}x" for n in (12, 13))] if package == "cupy" else [package]
    for name in candidates:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the report as names and values."""
    rows = [(name, str(report[name])) for name in ("pagedcache", "python", "numpy", "machine", "processors")]
    rows += [(name, version or "not found") for name, version in report["packages"].items()]
    for blas in report["blas"]:
        words = [blas["internal_api"], blas["version"], blas["architecture"], f"threads: {blas['num_threads']}"]
        rows.append(("BLAS of NumPy", ", ".join(word for word in words if word)))
    modes = {None: "none here", "never": "never: reading K and V is slower; 'madvise' is enough"}
    rows.append(("huge pages", modes.get(report["huge_pages"], report["huge_pages"])))
    rows += [(name, "not set" if value is None else value) for name, value in report["variables"].items()]
    for name, backend in report["backends"].items():
        rows.append(("", ""))
        if "error" in backend:
            rows.append((f"backend {name}", f"cannot be used: {backend['error']}"))
            continue
        rows.append((f"backend {name}", f"on {backend['device']}"))
        if isa := backend["instruction_sets"]:
            rows.append(("runs", isa["current"]))
            rows.append(("can run", ", ".join(isa["supported"])))
            rows.append(("compiled", ", ".join(isa["compiled"])))
        if backend["threads"] is not None:
            rows.append(("threads", str(backend["threads"])))
        rows.append(("dtypes", ", ".join(f"{t} ({backend['precisions'].get(t, '?')})" for t in backend["dtypes"])))
        rows.append(("variants", ", ".join(backend["variants"])))
        limit = "any" if backend["max_head_dim"] is None else f"up to {backend['max_head_dim']}"
        sizes = limit if backend["head_dims"] is None else ", ".join(map(str, backend["head_dims"]))
        rows.append(("layouts", f"{', '.join(backend['layouts'])}; blocks of up to {backend['max_block_size']}"))
        rows.append(("head sizes", sizes))
    return rows
