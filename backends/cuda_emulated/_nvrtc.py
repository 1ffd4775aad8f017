"""NVRTC, CUDA's compiler as a library, through ctypes: compiles without CUDA's headers, a driver or a GPU.

`compile` does what the CUDA backend has CuPy do, with the same options, so that what it says of registers, and the
PTX that tests interpret, is what a GPU will run.
"""

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pagedcache.errors import UnsupportedByBackend

__all__ = ["Compiled", "Resources", "compile", "resources"]

# CuPy adds -ftz=true to all it compiles; subnormal results are zeros here as well as there.
OPTIONS = ("--std=c++17", "-default-device", "-ftz=true", "--ptxas-options=-v")
SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12")

ENTRY = re.compile(r"Compiling entry function '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Compiled:
    """A translation unit, compiled."""

    image: bytes  # what a driver loads: a cubin for sm_XX, the text of the PTX for compute_XX
    ptx: str | None  # None where NVRTC made none
    log: str


@dataclass(frozen=True)
class Resources:
    """What an entry needs of a GPU."""

    registers: int  # per thread
    stack: int  # bytes per thread
    spill_stores: int  # bytes per thread
    spill_loads: int
    shared: int  # bytes per block, without what a launch asks for


def compile(source: str, name: str, arch: str, options: tuple[str, ...] = ()) -> Compiled:
    """Compile CUDA C++ for one architecture.

    Parameters
    ----------
    source
        One translation unit, without includes.
    name
        Of the file in messages.
    arch
        ``sm_80`` and the like for machine code, ``compute_80`` for PTX.
    options
        Beyond `OPTIONS`.

    Raises
    ------
    RuntimeError
        The source does not compile; the message is NVRTC's log.
    UnsupportedByBackend
        NVRTC is not installed.
    """
    library = _library()
    program = ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None))
    try:
        given = [f"-arch={arch}".encode(), *(option.encode() for option in OPTIONS + options)]
        status = library.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
        log = _product(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
        if status:
            raise RuntimeError(f"NVRTC refuses {name} for {arch}:\n{log}")
        ptx = _product(program, "PTX").rstrip(b"\0").decode()
        image = ptx.encode() if arch.startswith("compute") else _product(program, "CUBIN")
        return Compiled(image, ptx or None, log)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def resources(log: str) -> dict[str, Resources]:
    """Return what each entry of a log of `compile` needs, by its name."""
    _, *parts = ENTRY.split(log)
    return {name: _resources(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _resources(text: str) -> Resources:
    frame, used, shared = FRAME.search(text), USED.search(text), SHARED.search(text)
    if frame is None or used is None:
        raise ValueError(f"the compiler's log has no registers and stack in {text!r}")
    stack, stores, loads = map(int, frame.groups())
    return Resources(int(used[1]), stack, stores, loads, int(shared[1]) if shared else 0)


def _product(program: ctypes.c_void_p, kind: str) -> bytes:
    """Return a result of NVRTC, which says its size first: ``ProgramLog``, ``PTX``, ``CUBIN``."""
    size = ctypes.c_size_t()
    _check(_library()[f"nvrtcGet{kind}Size"](program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(_library()[f"nvrtcGet{kind}"](program, buffer))
    return buffer.raw


def _check(status: int) -> None:
    if status:
        describe = _library().nvrtcGetErrorString
        describe.restype = ctypes.c_char_p
        raise RuntimeError(f"NVRTC: {describe(status).decode()}")


@cache
def _library() -> ctypes.CDLL:
    for path in _wheels():
        # NVRTC 13.0 does not find the library of its built-in functions by itself.
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(path))
    for name in SONAMES:  # wherever the loader looks
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise UnsupportedByBackend("NVRTC, which compiles the CUDA kernels, is not found: pip install nvidia-cuda-nvrtc")


def _wheels() -> list[Path]:
    """Return the libraries of NVIDIA's wheels, newest first."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    found = [path for folder in folders or () for path in Path(folder).glob("*/lib/libnvrtc.so.*")]
    return sorted(found, key=lambda path: int(path.suffix[1:]), reverse=True)
