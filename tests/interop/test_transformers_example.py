"""The example of the documentation, and the benchmark's quick mode, run and agree."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


def run(checkout, script, *arguments):
    command = [sys.executable, str(checkout / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example(checkout):
    printed = run(checkout, "docs/examples/transformers_generate.py")
    assert "tokens equal: True" in printed


def test_the_benchmark(checkout):
    printed = run(checkout, "benchmarks/peers/transformers_generate.py", "--quick", "--rounds", "1", "--threads", "1")
    assert "tokens equal: ok" in printed
