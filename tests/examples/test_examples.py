"""Every program in docs/examples runs, as a user would run it, and says something."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
BESIDES = {"pagedcache", "cupy"}  # ours; and what cupy_decode.py does without


def modules_of(path):
    """Top-level modules that are not Python's own, wherever in the file they are imported."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
            names |= {node.module.split(".")[2]} if node.module.startswith("pagedcache.interop.") else set()
    return names - BESIDES - sys.stdlib_module_names


def compilers_for(path, request):
    text = path.read_text(encoding="utf-8")
    if "cuda-emulated" in text:
        request.getfixturevalue("cxx")
    if "interop.jax" in text:
        from pagedcache.interop.jax._handler import compiler

        try:
            compiler()
        except RuntimeError as reason:
            pytest.skip(str(reason))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, request, tmp_path):
    missing = sorted(name for name in modules_of(path) if importlib.util.find_spec(name) is None)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    compilers_for(path, request)
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
        env=os.environ | {"PYTHONWARNINGS": "default"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_examples(checkout):
    assert {"cupy_decode", "jax_decode", "onnxruntime_decode"} <= {path.stem for path in EXAMPLES}


def test_what_an_example_needs_is_found_out(tmp_path):
    path = tmp_path / "example.py"
    path.write_text("import os\nfrom jax import numpy\ndef f():\n    from pagedcache.interop.transformers import A\n")
    assert modules_of(path) == {"jax", "transformers"}
