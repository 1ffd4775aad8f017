"""The examples in C, C++ and Rust, built as strangers do: no warning, and the numbers of KVCache to the last bit."""

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from c_table import STRUCTS, Table

from pagedcache import CacheSpec, KVCache, get_include, get_library

LAYERS, KV_HEADS, Q_HEADS, HEAD_DIM = 2, 2, 4, 16
STRICT = "-pedantic -Wall -Wextra -Werror".split()
BUILDS = {
    "gcc": ("c/decode.c", ["gcc", "-std=c99", *STRICT]),
    "clang": ("c/decode.c", ["clang", "-std=c99", *STRICT]),
    "g++": ("cpp/decode.cpp", ["g++", "-std=c++17", *STRICT]),
    "clang++": ("cpp/decode.cpp", ["clang++", "-std=c++17", *STRICT]),
    "rustc": ("rust/decode.rs", ["rustc", "--edition", "2021", "-D", "warnings"]),
}


def run(command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def options(*names):
    return run([sys.executable, "-m", "pagedcache.capi", *names], None).split()


def numbers(kind, layer, tokens, heads):
    i = np.arange(heads * HEAD_DIM)
    rows = [(kind * 31 + layer * 17 + token * 13 + i * 7) % 64 - 32 for token in tokens]
    return (np.array(rows, np.float32) / 32).reshape(len(tokens), heads, HEAD_DIM)


def expected():
    """What the examples print, by KVCache: token, first and last number of its output."""
    lines = []
    spec = CacheSpec(layers=LAYERS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=4, dtype="float16")
    with KVCache(spec, num_blocks=100, backend="cpu") as cache:

        def step(ids, counts, tokens):
            opened = cache.extend(ids, counts)
            for layer in range(LAYERS):
                rows = [numbers(kind, layer, tokens, heads) for kind, heads in enumerate((Q_HEADS, KV_HEADS, KV_HEADS))]
                out = cache.attend(layer, *rows, opened)
            cache.commit(opened, None)
            lines.extend(
                (token, row[0], row[-1]) for token, row in zip(tokens, out.reshape(len(tokens), -1), strict=True)
            )

        ids = cache.admit([[]]).ids
        step(ids, 6, range(1, 7))
        for token in (7, 8, 9):
            step(ids, 1, [token])
        step([ids[0], cache.fork(ids)[0, 0]], 1, [10, 20])
        return lines, f"blocks {cache.stats().used}, shared {cache.stats().shared}"


@pytest.mark.parametrize("compiler", BUILDS)
def test_example(compiler, tmp_path, checkout):
    source, command = BUILDS[compiler]
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    flags = options("--rustc") if compiler == "rustc" else options("--cflags", "--libs")
    run([*command, str(checkout / "docs/examples" / source), *flags, "-o", str(tmp_path / "decode")], tmp_path)
    printed = run([str(tmp_path / "decode")], tmp_path).splitlines()
    want, figures = expected()
    assert [tuple(map(np.float32, line.split())) for line in printed[: len(want)]] == want
    assert printed[len(want)] == figures


LAYOUT = """
#include <stddef.h>
#include <stdio.h>
#include <pagedcache.h>
int main(void) {
%s
    return 0;
}
"""


def test_structs_as_python_sees_them(tmp_path):  # and so as other languages write them down
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    places = [(s.__name__, name) for s in STRUCTS for name, _ in s._fields_]
    lines = [f'    printf("%d\\n", (int)offsetof({s}, {name}));' for s, name in places]
    lines += [f'    printf("%d\\n", (int)sizeof({s.__name__}));' for s in STRUCTS]
    (tmp_path / "layout.c").write_text(LAYOUT % "\n".join(lines), encoding="utf-8")
    run(["gcc", "-std=c99", "layout.c", *options("--cflags"), "-o", "layout"], tmp_path)
    want = [getattr(s, name).offset for s in STRUCTS for name, _ in s._fields_]
    assert list(map(int, run(["./layout"], tmp_path).split())) == want + [ctypes.sizeof(s) for s in STRUCTS]


def test_the_python_side_names_every_function():
    header = Path(get_include(), "pagedcache.h").read_text(encoding="utf-8")
    functions = re.findall(r"\(\*(\w+)\)\(", header)
    assert functions == [name for name, _ in Table._fields_][2:]
    pxd = Path(get_include(), "../capi/__init__.pxd").read_text(encoding="utf-8")
    assert re.findall(r"\(\*(\w+)\)\(", pxd) == functions


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("nm") is None, reason="needs nm")
def test_the_library_shows_one_symbol_and_needs_no_python():
    names = [line.split()[-1] for line in run(["nm", "-D", "--defined-only", get_library()], None).splitlines()]
    assert names == ["pagedcache_get_api"]
    undefined = run(["nm", "-D", "--undefined-only", get_library()], None)
    assert not re.findall(r"\b_?Py\w*", undefined)


@pytest.mark.parametrize("wrong", [[], ["--nothing"]])
def test_command_refuses_nothing(wrong):
    done = subprocess.run(
        [sys.executable, "-m", "pagedcache.capi", *wrong], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "--cflags" in done.stderr
