"""A plan: what a cache for a model costs, and what a budget of memory holds, before anything is allocated."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

from pagedcache.spec import CacheSpec, parse_bytes

__all__ = ["MemoryPlan", "Room", "plan_memory"]


@dataclass(frozen=True, slots=True)
class Room:
    """For how many sequences of one length there is room, if they share nothing."""

    length: int  # tokens
    blocks: int  # of one sequence
    sequences: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a ``KVCache`` of this spec and memory has, to the byte."""

    spec: CacheSpec
    memory: int  # bytes, the budget
    num_blocks: int  # usable
    rooms: tuple[Room, ...]  # one for each length asked for
    max_length: int  # tokens that a contiguous cache reserves for each sequence

    @property
    def pool_nbytes(self) -> int:
        """Bytes of the pool, the reserved block included: what the storage's arrays have."""
        return self.spec.pool_nbytes(self.num_blocks)

    @property
    def contiguous_sequences(self) -> int:
        """Sequences of a contiguous cache in the same memory: each reserves `max_length` tokens, however short."""
        return self.memory // (self.max_length * self.spec.bytes_per_token)


def plan_memory(spec: CacheSpec, memory: str | SupportsIndex, lengths: Iterable[int], *, max_length: int) -> MemoryPlan:
    """Plan a cache.

    Parameters
    ----------
    spec : CacheSpec
    memory : int or str
        Budget, bytes or text such as ``"512 MiB"``.
    lengths : iterable of int
        Tokens of sequences; for each, the plan says how many such fit.
    max_length : int
        Tokens that a contiguous cache reserves for each sequence.

    Raises
    ------
    ValueError
        The memory does not buy a block, or a length is below 1.

    Examples
    --------
    >>> plan = plan_memory(CacheSpec(30, 3, 64, dtype="float16"), "512 MiB", [300, 2048], max_length=8192)
    >>> plan.num_blocks, [(room.length, room.blocks, room.sequences) for room in plan.rooms]
    (1455, [(300, 19, 76), (2048, 128, 11)])
    >>> plan.contiguous_sequences
    2
    """
    blocks = spec.blocks_for(memory)
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}; it must be at least 1")
    rooms = tuple(
        Room(length, spec.blocks_per_sequence(length), spec.sequences_that_fit(length, num_blocks=blocks))
        for length in lengths
    )
    return MemoryPlan(spec, parse_bytes(memory), blocks, rooms, max_length)
