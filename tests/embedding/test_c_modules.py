"""Modules of strangers in C and Cython, by the capsule: built against the installed package, linked with nothing."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache, Step
from pagedcache.backends.cpu import CpuBackend
from pagedcache.capi import _C_API

pytestmark = pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder of the two modules."""
    folder = tmp_path_factory.mktemp("strangers")
    shutil.copytree(Path(__file__).parent / "stranger_c", folder, dirs_exist_ok=True)
    command = [sys.executable, "-P", "setup.py", "-q", "build_ext", "--inplace"]
    quick = os.environ | {"CFLAGS": "-O0 -g0"}
    done = subprocess.run(command, cwd=folder, env=quick, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def module(built, name):
    (path,) = built.glob(f"{name}.*.so")
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_capsule_says_what_it_is():
    assert "pagedcache.capi._C_API" in repr(_C_API)


def test_c_module(built):
    rng, c_module = np.random.default_rng(3), module(built, "c_module")
    spec = CacheSpec(layers=1, kv_heads=2, head_dim=16, block_size=4)
    backend = CpuBackend()
    storage = backend.allocate(spec, 9)
    k, v = storage.view(0)
    k[1:], v[1:] = rng.standard_normal((2, 9, 4, 2, 16), np.float32)
    q = rng.standard_normal((2, 6, 16), np.float32)
    tables, lens = np.array([[5, 2, 9], [1, 0, 0]], np.int32), np.array([11, 3], np.int32)
    out = np.empty_like(q)
    c_module.attend(k, v, q, out, tables, lens, 2, 16, 4)
    want = backend.attend(storage, 0, q, Step.from_arrays(tables, lens, [0, 1, 2], block_size=4))
    assert out.tobytes() == want.tobytes()
    with pytest.raises(ValueError, match=r"status 1: block_tables\[0, 1\] is 10"):
        c_module.attend(k, v, q, out, np.array([[5, 10, 9], [1, 0, 0]], np.int32), lens, 2, 16, 4)


def test_cython_module(built):
    rng, cython_module = np.random.default_rng(4), module(built, "cython_module")
    q, kv = rng.standard_normal((11, 4, 8), np.float32), rng.standard_normal((11, 2, 8), np.float32)
    out = np.empty_like(q)
    assert cython_module.decode(q, kv, out, 3, 4) == 3
    with KVCache(CacheSpec(layers=1, kv_heads=2, head_dim=8, block_size=4), num_blocks=3, backend="cpu") as cache:
        ids = cache.admit([[]]).ids
        for t in range(11):
            step = cache.extend(ids, 1)
            assert cache.attend(0, q[t : t + 1], kv[t : t + 1], kv[t : t + 1], step).tobytes() == out[t].tobytes()
            cache.commit(step, None)
    with pytest.raises(RuntimeError, match="would pass max_length, 8"):
        cython_module.decode(q, kv, out, 2, 4)


@pytest.mark.parametrize("name", ["c_module", "cython_module"])
def test_import_alone_is_enough(built, name):
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=built, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
