"""Importing pagedcache is cheap and quiet: no framework, no thread, no module that only an extra brings."""

import importlib
import json
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pagedcache

EXTRAS = {"click", "cupy", "gguf", "jax", "ml_dtypes", "mooncake", "msgspec", "prometheus_client", "redis", "rich"}
EXTRAS |= {"onnx", "onnxruntime", "threadpoolctl", "tokenizers", "torch", "transformers", "zmq"}
NEEDS_EXTRAS = ("pagedcache.cli", "pagedcache.interop.", "pagedcache.serving")

WHEN_ASKED_FOR = {"asyncio", "concurrent.futures", "hashlib", "importlib.metadata", "json", "sqlite3", "subprocess"}
WHEN_ASKED_FOR |= {f"pagedcache.{name}" for name in "cli monitoring replay saved serving sizing testing tiers".split()}
MOST_MODULES = 80


def run_python(code, cwd):
    """Run code in a fresh interpreter that does not see the folder it starts in."""
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def module_names():
    found = pkgutil.walk_packages(pagedcache.__path__, "pagedcache.")
    return sorted(module.name for module in found if not module.name.endswith("__main__"))


def test_import_brings_no_extra_and_starts_no_thread(tmp_path):  # C10
    code = (
        "import json, sys, threading, pagedcache, pagedcache.backends;"
        "print(json.dumps([sorted({name.partition('.')[0] for name in sys.modules}), threading.active_count()]))"
    )
    loaded, threads = json.loads(run_python(code, tmp_path))
    assert EXTRAS.isdisjoint(loaded)
    assert threads == 1


def test_import_brings_little(tmp_path):
    """A count, since times are not for tests: `benchmarks/import_time.py` has the bar that this holds."""
    code = (
        "import sys, numpy; before = set(sys.modules); import pagedcache;"
        "new = sorted(set(sys.modules) - before); import json; print(json.dumps(new))"
    )
    brought = set(json.loads(run_python(code, tmp_path)))
    assert len([name for name in brought if name.startswith("pagedcache.")]) <= MOST_MODULES
    assert WHEN_ASKED_FOR.isdisjoint(brought)


def test_import_writes_nothing(tmp_path):
    assert run_python("import pagedcache", tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", module_names())
def test_every_module_imports(name):
    if name.startswith("pagedcache.interop."):
        pytest.importorskip(name.split(".")[2])
    importlib.import_module(name)


def test_modules_import_without_the_extras(tmp_path):
    names = [name for name in module_names() if not name.startswith(NEEDS_EXTRAS) and name != "pagedcache.testing"]
    names = [name for name in names if not name.startswith("pagedcache.testing.")]
    code = f"import sys, importlib; sys.modules.update(dict.fromkeys({sorted(EXTRAS)!r}))\n" + "\n".join(
        f"importlib.import_module({name!r})" for name in names
    )
    run_python(code, tmp_path)


def test_public_names_are_real():
    names = pagedcache.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert hasattr(pagedcache, name), name


def test_source_tree_without_a_build_says_so(tmp_path):
    package = Path(pagedcache.__file__).parent
    shutil.copytree(package, tmp_path / "pagedcache", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", "import pagedcache"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {tmp_path / 'pagedcache'} is a source tree")


def test_import_in_any_order(tmp_path):
    """No module depends on another having been imported first."""
    for name in ("pagedcache.backends", "pagedcache.core", "pagedcache.spec", "pagedcache.errors"):
        run_python(f"import {name}", tmp_path)
