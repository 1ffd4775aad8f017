from collections.abc import Sequence
from typing import Self

from pagedcache.core.block_pool import BlockPool

class RowTable:
    pool: BlockPool
    index: object
    block_size: int
    max_sequences: int
    max_length: int
    num_sequences: int
    num_sides: int
    num_state_blocks: int
    max_step_tokens: int
    def __new__(
        cls,
        pool: BlockPool,
        block_size: int,
        *,
        max_sequences: int = 256,
        max_length: int | None = None,
        steps_in_flight: int = 1,
        tag_bits: int = 64,
        events: str | None = None,
        fingerprint: bytes = b"",
        max_pinned: int | None = None,
        side_groups: Sequence[tuple[int | None, int, bool]] = (),
        max_step_tokens: int | None = None,
        state_blocks: Sequence[int] = (),
    ) -> Self: ...
    @property
    def nbytes(self) -> int: ...
    def check(self) -> None: ...
