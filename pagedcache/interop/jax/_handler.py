"""The handler in ``attend.c``: compiled for the jaxlib that is installed, once, and made known to XLA.

The library is in folder ``jax`` of ``$PAGEDCACHE_CACHE_DIR``, or else of ``$XDG_CACHE_HOME/pagedcache`` or
``~/.cache/pagedcache``, named after a hash of all that it is made of. Several processes may build it at once.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from pagedcache.capi import API_VERSION, get_include, load_library
from pagedcache.interop.jax._pools import jax_module

__all__ = ["build", "compiler", "register"]

SOURCE = Path(__file__).with_name("attend.c")
FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,now")
_LOCK = threading.Lock()


def register(target: str) -> None:
    """Make the handler known to XLA under this name, if that was not done yet.

    Raises
    ------
    RuntimeError
        There is no C compiler, or it refuses the source.
    """
    with _LOCK:
        _register(target)


@functools.cache
def _register(target: str) -> ctypes.CDLL:
    jax = jax_module()
    handler = ctypes.CDLL(str(build(jax.ffi.include_dir(), jax.lib.__version__)))
    get_api = load_library().pagedcache_get_api
    get_api.restype, get_api.argtypes = ctypes.c_void_p, [ctypes.c_int32]
    use = handler.pagedcache_jax_use
    use.restype, use.argtypes = None, [ctypes.c_void_p]
    use(get_api(API_VERSION))
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler.pagedcache_jax_attend), platform="cpu")
    return handler


def build(headers: str, version: str) -> Path:
    """Return the handler's library, compiled against these headers of a jaxlib, if there is none yet."""
    command = [*compiler(), *FLAGS, f"-I{get_include()}", f"-I{headers}"]
    asked = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    api = Path(get_include(), "pagedcache.h").read_text(encoding="utf-8")
    known = "\0".join([SOURCE.read_text(encoding="utf-8"), api, version, *compiler(), *FLAGS, asked])
    path = _folder() / f"attend-{hashlib.sha256(known.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        _compile(command, path)
    return path


def compiler() -> tuple[str, ...]:
    """Return the command of a C compiler."""
    for variable in ("PAGEDCACHE_CC", "CC"):
        if command := shlex.split(os.environ.get(variable, "")):
            if not shutil.which(command[0]):
                raise RuntimeError(f"{variable} names a C compiler that is not there: {command[0]}")
            return tuple(command)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return (name,)
    raise RuntimeError(
        "attention as a call of XLA is compiled at first use, and there is no C compiler: install gcc (or name one in "
        "the environment variable PAGEDCACHE_CC), or use pagedcache.interop.jax.gather_attend, which needs none"
    )


def _folder() -> Path:
    home = os.environ.get("PAGEDCACHE_CACHE_DIR")
    if not home:
        home = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pagedcache")
    folder = Path(home) / "jax"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _compile(command: list[str], path: Path) -> None:
    """Build `path`; it appears when it is complete, and is never replaced: another process may have loaded it."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        unfinished = Path(folder) / path.name
        done = subprocess.run(
            [*command, str(SOURCE), "-o", str(unfinished)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = "\n".join(done.stderr.splitlines()[:20])
            raise RuntimeError(f"the compiler refuses {SOURCE.name}:\n{lines}")
        with contextlib.suppress(FileExistsError):  # somebody else was faster
            os.link(unfinished, path)
