"""Tables that audit themselves when their test ends."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pagedcache.core import BlockPool, SequenceTable


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
