"""Tables that audit themselves when their test ends; the collector, held."""

import gc
from collections.abc import Callable, Iterator
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
