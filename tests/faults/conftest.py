"""Caches that audit themselves when their test ends."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from token_cache import TokenCache


@pytest.fixture
def make() -> Iterator[Callable[..., TokenCache]]:
    """``make(num_blocks=16, block_size=4, **options)``: a TokenCache, checked and closed at the end."""
    made: list[TokenCache] = []

    def build(**options: Any) -> TokenCache:
        made.append(TokenCache(**options))
        return made[-1]

    yield build
    for each in made:
        each.cache.sequences.check()  # the table's: a test may have closed the cache
        each.cache.close()
