"""How much of the prompts a prefix cache of a given size would have found.

The cache is the project's own: requests go through a `SequenceTable` in the order of the trace, one after the other,
and its index and eviction policy decide what is found and what gives way. There are no K and V, so that a replay is as
fast as the bookkeeping.

A block of the trace is one token of the table. Its number stands for all before it too, so that the index, with blocks
of one token, finds exactly the prefix that the trace says is alike. `admit` always leaves a token to compute: a token
that no prompt has stands behind each, and its block, never published, comes on top of the capacity.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pagedcache._sizes import integer, one_of
from pagedcache.core import (
    ARC,
    LFUDA,
    LRU,
    S3FIFO,
    BlockPool,
    EvictionPolicy,
    NeverHitFirst,
    PriorityTTL,
    SequenceTable,
)
from pagedcache.replay.belady import belady_hits
from pagedcache.replay.trace import Trace

__all__ = ["POLICIES", "HitRate", "capacities", "prefix_hits", "replay_prefix"]

CORE: dict[str, Callable[[], EvictionPolicy]] = {  # policies of the core that need to be told nothing
    "lru": LRU,
    "lfu-da": LFUDA,
    "arc": ARC,
    "s3-fifo": S3FIFO,
    "never-hit-first": NeverHitFirst,
}
POLICIES = (*CORE, "priority-ttl", "belady")
TTLS = (300.0, 300.0)  # seconds, for `priority-ttl`: of prompts that are new, and of those that go on
CLOCK = 1000.0  # the policy's clock also runs by itself: a second of the trace is so many of it, to drown that

Progress = Callable[[int], object]


@dataclass(frozen=True)
class HitRate:
    """What a policy found at one capacity.

    Attributes
    ----------
    policy : str
        One of `POLICIES`.
    capacity_blocks, capacity_tokens : int
        Blocks of the trace that the cache holds, and the tokens for which they have room.
    blocks, hit_blocks : int
        Blocks of all prompts, and how many of them were found.
    tokens, hit_tokens : int
        The same in tokens: the last block of a prompt counts with the tokens that it has.
    """

    policy: str
    capacity_blocks: int
    capacity_tokens: int
    blocks: int
    hit_blocks: int
    tokens: int
    hit_tokens: int

    @property
    def token_rate(self) -> float:
        """Share of the prompts' tokens that were found."""
        return self.hit_tokens / self.tokens

    @property
    def block_rate(self) -> float:
        """Share of the prompts' blocks that were found."""
        return self.hit_blocks / self.blocks


def capacities(trace: Trace, *, smallest: int = 10_000) -> list[int]:
    """Return capacities in blocks: 1, 2, 5, 10, ... times `smallest` tokens, up to one that holds the whole trace.

    Examples
    --------
    >>> from pagedcache.replay import shipped_trace
    >>> capacities(shipped_trace("mooncake-conversation"), smallest=1_000_000)
    [1953, 3906, 9765, 19531, 30634]
    """
    size, everything = _block_size(trace), max(1, trace.num_blocks)
    series = (factor * smallest * 10**power // size for power in range(12) for factor in (1, 2, 5))
    below = sorted({max(1, blocks) for blocks in series if blocks < everything})
    return [*below, everything]


def replay_prefix(
    trace: Trace,
    capacity_blocks: Iterable[int],
    policies: Sequence[str] = ("lru", "belady"),
    *,
    skip: float = 0.0,
    ttls: Sequence[float] = TTLS,
    progress: Callable[[str, int, int], object] = lambda policy, capacity, done: None,
) -> list[HitRate]:
    """Replay a trace for each policy and capacity.

    Parameters
    ----------
    trace : Trace
        With blocks.
    capacity_blocks : iterable of int
        Sizes of the cache, in blocks of the trace.
    policies : sequence of str
        Some of `POLICIES`.
    skip : float
        Share of the requests at the beginning that fill the cache and are not counted.
    ttls : two floats
        Seconds; see :func:`prefix_hits`.
    progress : callable
        Called with policy, capacity and how many requests are done.

    Raises
    ------
    ValueError
        A trace without blocks, an unknown policy, a capacity below 1, or nothing left to count.
    """
    size = _block_size(trace)
    assert trace.blocks is not None
    if not 0 <= skip < 1:
        raise ValueError(f"skip is {skip}; it must be at least 0 and less than 1")
    first = int(len(trace) * skip)
    lengths = np.array([len(ids) for ids in trace.blocks], np.int64)
    if not lengths[first:].sum():
        raise ValueError(f"{trace.name}: the {len(trace) - first} requests to count have no blocks")
    results = []
    for policy in policies:
        for capacity in capacity_blocks:
            hits = prefix_hits(trace, capacity, policy, ttls=ttls, progress=partial(progress, policy, capacity))
            found = np.minimum(hits * size, trace.prompts)
            results.append(
                HitRate(
                    policy,
                    capacity,
                    capacity * size,
                    int(lengths[first:].sum()),
                    int(hits[first:].sum()),
                    int(trace.prompts[first:].sum()),
                    int(found[first:].sum()),
                )
            )
    return results


def prefix_hits(
    trace: Trace,
    capacity: int,
    policy: str = "lru",
    *,
    ttls: Sequence[float] = TTLS,
    progress: Progress = lambda done: None,
) -> NDArray[np.int64]:
    """Return how many leading blocks of each request's prompt were found.

    Parameters
    ----------
    trace : Trace
        With blocks; for "priority-ttl" with arrivals.
    capacity : int
        Blocks that the cache holds. Of a longer prompt the first `capacity` blocks are kept.
    policy : str
        One of `POLICIES`: the core's `LRU`, `LFUDA`, `ARC`, `S3FIFO` and `NeverHitFirst`; its `PriorityTTL` with two
        levels ("priority-ttl"), where a prompt of which at least half is found is taken for one that goes on and has
        its blocks raised to level 1; or the bound, which knows the future ("belady").
    ttls : two floats
        Seconds that idle blocks of level 0 and 1 live, the second no less than the first. The policy's clock goes by
        the times of arrival.

    Returns
    -------
    int64 [n]
    """
    integer("capacity", capacity, maximum=2**26)
    _block_size(trace)
    if one_of("policy", policy, POLICIES) == "belady":
        return belady_hits(trace, capacity, progress=progress)
    if policy in CORE:
        return _replay(trace, capacity, CORE[policy](), progress)
    if trace.arrivals is None:
        raise ValueError(f"{trace.name}: priority-ttl needs the times of arrival, which this trace does not tell")
    if len(ttls) != 2:
        raise ValueError(f"ttls is {list(ttls)}; two are needed, of new prompts and of those that go on")
    return _replay(trace, capacity, PriorityTTL([CLOCK * ttl for ttl in ttls]), progress)


def _replay(trace: Trace, capacity: int, policy: EvictionPolicy, progress: Progress) -> NDArray[np.int64]:
    assert trace.blocks is not None
    table = SequenceTable(BlockPool(capacity + 1, policy), 1, max_sequences=1, max_length=capacity + 1)
    hits = np.zeros(len(trace), np.int64)
    times = np.zeros(len(trace)) if trace.arrivals is None else np.maximum.accumulate(trace.arrivals)
    waits = np.diff(times, prepend=0.0)
    sentinel = np.int32(trace.num_blocks)  # a token that no prompt has
    for number, ids in enumerate(trace.blocks):
        blocks = ids[:capacity]
        prompt = np.append(blocks, sentinel)
        goes_on = 0
        if isinstance(policy, PriorityTTL):
            policy.advance(CLOCK * waits[number])
            goes_on = int(2 * table.match([prompt])[0] >= len(blocks) > 0)
        admission = table.admit([prompt], priority=goes_on)
        hits[number] = cached = int(admission.cached[0])
        if cached < len(blocks):
            table.commit(table.extend(admission.ids, len(blocks) - cached), blocks[cached:])
        table.release(admission.ids)
        progress(number + 1)
    return hits


def _block_size(trace: Trace) -> int:
    if trace.blocks is None or trace.block_size is None:
        raise ValueError(f"{trace.name}: the trace does not tell which blocks are alike, only lengths")
    return trace.block_size
