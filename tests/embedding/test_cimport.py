"""A stranger's Cython module builds against the installed package and uses the pool without the GIL."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

USE = """
import stranger
from pagedcache.core import BlockPool

pool = BlockPool(40)
kept = pool.allocate(8)
assert stranger.num_blocks(pool) == 40
before, meanwhile, blocks = stranger.take_and_give_back(pool, 16)
assert (before, meanwhile) == (32, 16)
assert len(set(blocks)) == 16 and set(blocks).isdisjoint(kept.tolist())
assert pool.num_free == 32
pool.check()
try:
    stranger.num_blocks(object())
except TypeError:
    pass
else:
    raise AssertionError("another type was accepted")
"""


def run(command, cwd):
    quick = os.environ | {"CFLAGS": "-O0 -g0"}  # it is built once and runs for a moment
    done = subprocess.run(command, cwd=cwd, env=quick, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="needs a C compiler")
def test_a_stranger_builds_and_runs(tmp_path):
    shutil.copytree(Path(__file__).parent / "stranger", tmp_path, dirs_exist_ok=True)
    run([sys.executable, "-P", "setup.py", "-q", "build_ext", "--inplace"], tmp_path)
    run([sys.executable, "-c", USE], tmp_path)
