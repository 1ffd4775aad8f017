"""Kernels as shared libraries for this processor, compiled once and kept.

They are in folder ``emulator`` of ``$PAGEDCACHE_CACHE_DIR``, or else of ``$XDG_CACHE_HOME/pagedcache`` or
``~/.cache/pagedcache``, each named after a hash of all that it is made of, beside its source. Several processes may
build the same at once.
"""

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pagedcache.backends.cuda._kernels import Kernel, source
from pagedcache.errors import UnsupportedByBackend

__all__ = ["SANITIZERS", "compiler", "library", "preload", "runtime"]

EMULATOR = Path(__file__).parent / "emulator"
FLAGS = ("-std=c++17", "-fPIC", "-shared", "-Wl,-z,now", "-ffp-contract=off", "-fvisibility=hidden")
# Kernels look at memory as numbers of several types. Names are hidden: kernels of other sources may be loaded as well.
KERNEL_FLAGS = ("-O1", "-w", "-fno-strict-aliasing", "-fno-exceptions", "-fno-rtti")
RUNTIME_FLAGS = ("-O3", "-pthread")
# What the runtime calls: the entry takes its struct by value, as on a GPU, and only here its type is known.
ENTER = """
#define PC_EXPORT extern "C" __attribute__((visibility("default")))
PC_EXPORT void emulator_enter(const void *params) {{ {name}(*(const {params} *)params); }}
PC_EXPORT unsigned emulator_params_bytes() {{ return sizeof({params}); }}
"""


class Sanitizer(NamedTuple):
    """What a sanitizer adds; the runtime is told of it but not watched."""

    kernel: tuple[str, ...] = ()  # flags
    runtime: tuple[str, ...] = ()  # flags
    libraries: tuple[str, ...] = ()  # that a process has to begin with


TRACES = ("-g1", "-fno-omit-frame-pointer")
SANITIZERS = {
    "": Sanitizer(),
    "address,undefined": Sanitizer(
        (*TRACES, "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
        ("-DEMULATOR_ASAN",),
        ("libasan.so", "libubsan.so"),
    ),
    "thread": Sanitizer((*TRACES, "-fsanitize=thread"), ("-DEMULATOR_TSAN",), ("libtsan.so",)),
}


def library(kernel: Kernel, sanitize: str = "", extra: str = "") -> Path:
    """Return the shared library of a kernel, built if there is none.

    Parameters
    ----------
    kernel : Kernel
        What to compile.
    sanitize : {"", "address,undefined", "thread"}
        Sanitizers that watch it; see `preload`.
    extra : str
        C++ that comes after the primitives: for kernels that are not among those of ``backends/cuda/kernels``.

    Returns
    -------
    Path
        Of a library that depends on the one that `runtime` returns.

    Raises
    ------
    UnsupportedByBackend
        There is no C++ compiler.
    RuntimeError
        The source does not compile.
    """
    linked = runtime(sanitize)
    text = source(kernel, f'#include "primitives.h"\n{extra}') + ENTER.format(name=kernel.name, params=kernel.params)
    flags = (*KERNEL_FLAGS, *SANITIZERS[sanitize].kernel, "-I", str(EMULATOR))
    link = ("-L", str(linked.parent), f"-l:{linked.name}", "-Wl,-rpath,$ORIGIN")
    path = _place(kernel.name, [text, linked.name, *flags])
    if not path.exists():
        _write(path.with_suffix(".cpp"), text)
        _compile([*flags, path.with_suffix(".cpp").name, *link], path)
    return path


def runtime(sanitize: str = "") -> Path:
    """Return the shared library of the emulator itself, built if there is none; see `library`."""
    flags = (*RUNTIME_FLAGS, *SANITIZERS[sanitize].runtime)
    texts = [file.read_text(encoding="utf-8") for file in sorted(EMULATOR.iterdir()) if file.suffix in (".h", ".cpp")]
    path = _place("emulator", [*texts, *flags])
    if not path.exists():
        _compile([*flags, *map(str, sorted(EMULATOR.glob("*.cpp")))], path)
    return path


def preload(sanitize: str) -> str:
    """Return what LD_PRELOAD has to be in a process that loads libraries with these sanitizers.

    Raises
    ------
    UnsupportedByBackend
        The compiler is not g++, or its sanitizers are not installed.
    """
    names = SANITIZERS[sanitize].libraries
    found = [_asked(compiler(), f"-print-file-name={name}").strip() for name in names]
    if "clang" in _asked(compiler(), "--version") or not all(map(os.path.isabs, found)):
        raise UnsupportedByBackend(f"sanitizers need g++ and its {' and '.join(names)}")
    return " ".join(found)


def _place(name: str, parts: Sequence[str]) -> Path:
    """Return where the library made of these parts belongs."""
    known = "\0".join([*parts, *FLAGS, *compiler(), _asked(compiler(), "--version")])
    return _folder() / f"{name}-{hashlib.sha256(known.encode()).hexdigest()[:16]}.so"


def _folder() -> Path:
    home = os.environ.get("PAGEDCACHE_CACHE_DIR")
    if not home:
        home = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pagedcache")
    folder = Path(home) / "emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compiler() -> tuple[str, ...]:
    """Return the command of a C++ compiler."""
    for variable in ("PAGEDCACHE_CXX", "CXX"):
        command = shlex.split(os.environ.get(variable, ""))
        if command:
            if not shutil.which(command[0]):
                raise UnsupportedByBackend(f"{variable} names a C++ compiler that is not there: {command[0]}")
            return tuple(command)
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return (name,)
    raise UnsupportedByBackend(
        "backend cuda-emulated compiles kernels with a C++ compiler, and there is none: install g++, or name one in "
        "the environment variable PAGEDCACHE_CXX"
    )


@cache
def _asked(command: tuple[str, ...], question: str) -> str:
    """Return what a compiler answers."""
    return subprocess.run([*command, question], capture_output=True, text=True, check=True).stdout


def _write(path: Path, text: str) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        unfinished = Path(folder) / path.name
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)


def _compile(arguments: Sequence[str], path: Path) -> None:
    """Build `path`; it appears when it is complete, and is never replaced: another process may have loaded it."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        unfinished = Path(folder) / path.name
        command = [*compiler(), *FLAGS, *arguments, "-o", str(unfinished)]
        done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = "\n".join(done.stderr.splitlines()[:20])
            raise RuntimeError(f"the compiler refuses {path.with_suffix('.cpp').name}:\n{lines}")
        with contextlib.suppress(FileExistsError):  # somebody else was faster
            os.link(unfinished, path)
