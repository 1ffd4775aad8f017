"""PAGEDCACHE_ISA: one instruction set is forced, and nonsense is refused; nothing is loaded before it is asked for."""

import json
import os
import subprocess
import sys

import pytest

from pagedcache.backends.cpu import CpuBackend, _native

SHOW = """
import json
from pagedcache import backends
from pagedcache.errors import UnknownBackend
try:
    print(json.dumps(backends.get("cpu").capabilities.instruction_set))
except UnknownBackend as error:
    print(json.dumps(str(error)))
"""


def shown(isa, code=SHOW):
    environment = {**os.environ, "PAGEDCACHE_ISA": isa}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# N09: test_cpu.py runs the whole conformance suite with each of them.
@pytest.mark.parametrize("isa", _native.supported())
def test_one_can_be_forced(isa):
    assert shown(isa) == isa


def test_the_best_one_runs_where_nothing_is_said():  # R07
    assert shown("") == _native.supported()[-1] == CpuBackend().instruction_sets()["supported"][-1]


NOT_HERE = [name for name in _native.compiled() if name not in _native.supported()]


# P01: it ends with a message, not by an instruction that the processor does not know.
@pytest.mark.parametrize("isa", ["sse9", "AVX2", *NOT_HERE])
def test_what_cannot_run_is_refused_with_both_lists(isa):
    message = shown(isa)
    assert f"PAGEDCACHE_ISA: instruction set '{isa}'" in message and "backend 'cpu'" in message
    assert ("this processor cannot run it" in message) == (isa in NOT_HERE)
    assert f"compiled are {', '.join(_native.compiled())}" in message
    assert f"here can run {', '.join(_native.supported())}" in message


def test_numpy_works_where_the_kernels_do_not():
    assert shown("sse9", 'import json; from pagedcache import backends; print(json.dumps(backends.get("numpy").name))')


LAZY = """
import json, os, sys
import pagedcache, pagedcache.backends
loaded = [name for name in sys.modules if name.startswith("pagedcache.backends.")]
print(json.dumps([loaded, len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1]))
"""


def test_importing_pagedcache_loads_no_kernels_and_starts_no_thread():  # contract 13
    loaded, threads = shown("sse9", LAZY)
    assert not [name for name in loaded if name.startswith("pagedcache.backends.cpu")]
    assert threads == 1
