"""Tables that audit themselves when their test ends; the collector, held; a policy's C face."""

import gc
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pagedcache.core import BlockPool, SequenceTable

# What a fixture gives is one object for all threads of a test (pytest-run-parallel); these are made to be shared.
THREADS_MAY_SHARE = {"make", "tmp_path", "request", "driver"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test whose fixture holds a table runs in one thread: another's verbs would come between its own."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if set(getattr(item, "fixturenames", ())) - THREADS_MAY_SHARE - set(parameters):
            item.add_marker(pytest.mark.thread_unsafe)


@pytest.fixture
def make() -> Iterator[Callable[..., SequenceTable]]:
    """``make(num_blocks=16, block_size=4, **bounds)``: a table over a pool of its own."""
    tables: list[SequenceTable] = []

    def build(num_blocks: int = 16, block_size: int = 4, **bounds: Any) -> SequenceTable:
        tables.append(SequenceTable(BlockPool(num_blocks), block_size, **bounds))
        return tables[-1]

    yield build
    for table in tables:
        table.check()


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector off, and as it was at the end; for `drive.struck`."""
    thresholds, enabled = gc.get_threshold(), gc.isenabled()
    gc.collect()
    gc.freeze()  # what the tests before have left need not be searched again and again
    gc.disable()
    yield
    gc.set_threshold(*thresholds)
    if enabled:
        gc.enable()


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module in policy_driver/: the policy's C face, for Python."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    shutil.copytree(Path(__file__).parent / "policy_driver", folder, dirs_exist_ok=True)
    command = [sys.executable, "-P", "setup.py", "-q", "build_ext", "--inplace"]
    quick = os.environ | {"CFLAGS": "-O0 -g0"}  # it is built once and runs for a moment
    done = subprocess.run(command, cwd=folder, env=quick, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield importlib.import_module("policy_driver")
    sys.path.remove(str(folder))
