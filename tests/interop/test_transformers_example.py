"""The example of the documentation, and the benchmark's quick mode, run and agree."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


def run(script, *arguments):
    command = [sys.executable, "-P", str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example(program):
    printed = run(program("docs/examples/transformers_generate.py"))
    assert "tokens equal: True" in printed


def test_the_benchmark(program):
    script = program("benchmarks/peers/transformers_generate.py")
    printed = run(script, "--quick", "--rounds", "1", "--threads", "1")
    assert "tokens equal: ok" in printed
