"""Kernels with a seeded bug are caught, and those without are not accused: results, emulator, sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from battery import SMALL, EmulatedBackend, far_blocks, first_failure
from mutants import MUTANTS

from pagedcache.backends.cuda import _kernels
from pagedcache.backends.cuda_emulated._compiler import SANITIZERS, preload
from pagedcache.errors import UnsupportedByBackend

pytestmark = [pytest.mark.cuda_offline, pytest.mark.usefixtures("cxx")]
HERE = Path(__file__).parent
ASKED = {"threads": "thread", "addresses": "address,undefined"}


@pytest.fixture
def edited(monkeypatch):
    """Return a function that has one file of the kernels read with an edit."""
    read = _kernels._text

    def edit(mutant):
        text = mutant.edited(read(mutant.file))
        monkeypatch.setattr(_kernels, "_text", lambda name: text if name == mutant.file else read(name))

    return edit


def under_sanitizer(sanitize, cases, *mutants):
    """Run small cases in a process with a sanitizer; return its exit status and what it printed."""
    try:
        libraries = preload(sanitize)
    except UnsupportedByBackend as error:
        pytest.skip(str(error))
    environment = os.environ | {
        "LD_PRELOAD": libraries,
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        "TSAN_OPTIONS": "suppress_equal_addresses=0",
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
    }
    command = [sys.executable, str(HERE / "sanitized.py"), sanitize, ",".join(cases), *mutants]
    if sanitize == "thread":  # its shadow memory needs addresses where they usually are
        command = ["setarch", "-R", *command]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    return run.returncode, run.stdout + run.stderr


@pytest.mark.parametrize("order", ["forward", "random"])
def test_kernels_as_they_are_pass(order):
    assert first_failure(EmulatedBackend(order=order, seed=3)) is None
    assert first_failure(EmulatedBackend(order=order, late=False), [far_blocks, *SMALL.values()]) is None


@pytest.mark.parametrize("sanitize", [name for name in SANITIZERS if name])
def test_kernels_as_they_are_pass_under_sanitizers(sanitize):
    status, printed = under_sanitizer(sanitize, SMALL)
    assert (status, printed.strip()) == (0, "all well")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_seeded_bug_is_caught(mutant, edited):
    edited(mutant)
    if mutant.by in ASKED:
        status, printed = under_sanitizer(ASKED[mutant.by], [mutant.case], mutant.name)
        assert status, printed
    else:
        scenes = {"scenes": [far_blocks]} if mutant.by == "far" else {}
        assert first_failure(EmulatedBackend(), **scenes) is not None
