"""Which block size: what each wastes, what prefix reuse it loses, and how fast attention reads it.

Small blocks waste little at the end of a sequence and match prefixes nearly to the token; but each has a record, an
entry in tables and in the index, and attention has to jump more often.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pagedcache.core import BlockPool, SequenceTable
from pagedcache.sizing.decode_speed import DecodeSpeeds
from pagedcache.spec import CacheSpec

__all__ = ["BLOCK_SIZES", "Advice", "BlockSizeCost", "advise", "cost_of_block_sizes"]

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Those that are compared, in tokens."""

TUTORIAL = (16, 64)  # from, to
TURNS = 4  # messages of a conversation
MAX_SEQUENCES = 256
MAX_TOKENS = 500_000  # of a measured workload


@dataclass(frozen=True, slots=True)
class BlockSizeCost:
    """What one block size costs. Shares are from 0 to 1."""

    block_size: int  # tokens
    unused: float  # share of the slots held, when every sequence has its full length
    bookkeeping: float  # bytes of tables, records and index, as a share of the bytes of K and V held
    reuse_lost: float  # share of what a token-exact prefix cache would find; only full blocks are published
    speed: float | None = None  # of decode attention, as a share of the fastest block size's

    @property
    def overhead(self) -> float:
        """What memory goes elsewhere than into tokens."""
        return self.unused + self.bookkeeping


@dataclass(frozen=True, slots=True)
class Advice:
    """A block size, by a rule (see :func:`advise`)."""

    block_size: int
    good: tuple[int, ...]  # all that are fast and lean
    text: str


def cost_of_block_sizes(
    spec: CacheSpec,
    lengths: NDArray[np.int64],
    *,
    block_sizes: Sequence[int] = BLOCK_SIZES,
    system_tokens: int = 64,
    speeds: DecodeSpeeds | None = None,
) -> list[BlockSizeCost]:
    """Measure block sizes on a workload.

    Parameters
    ----------
    spec : CacheSpec
        The cache, whose own block size does not count.
    lengths : int64 [n, 2]
        Tokens of prompts and of their answers, at least 1 each. Of more than 256, so many are drawn, always the same.
    block_sizes : sequence of int
        In ascending order.
    system_tokens : int
        Of a system prompt that all conversations share. The others of a conversation are `lengths`, four messages
        and answers after each other, each prompt with all that came before it.
    speeds : DecodeSpeeds, optional
        Of the same block sizes, from :func:`decode_speeds`.

    Examples
    --------
    >>> costs = cost_of_block_sizes(CacheSpec(2, 1, 8), np.array([[9, 7], [20, 12]]), block_sizes=[4, 32])
    >>> [f"{cost.unused:.3f}" for cost in costs]
    ['0.000', '0.250']
    """
    lengths = _chosen(lengths)
    return [
        BlockSizeCost(
            size,
            *_memory(spec, size, lengths),
            _reuse_lost(size, lengths, system_tokens),
            speeds.share(size) if speeds is not None else None,
        )
        for size in block_sizes
    ]


def advise(costs: Sequence[BlockSizeCost], *, slower: float = 0.03, lost: float = 0.05) -> Advice:
    """Choose a block size.

    One is *fast* if attention reads it at most `slower` slower than the fastest, and *lean* if its overhead and the
    reuse that it loses are at most `lost` each. The advice is the smallest fast one; where speed was not measured, the
    largest lean one, and where none is lean, the one with the least overhead.

    Parameters
    ----------
    costs : sequence of BlockSizeCost
        In ascending order.
    slower, lost : float
        Shares, 0 to 1. A `slower` below :attr:`DecodeSpeeds.noise` would choose by accident.

    Examples
    --------
    >>> def cost(size, lost, speed):
    ...     return BlockSizeCost(size, unused=lost, bookkeeping=0, reuse_lost=lost, speed=speed)
    >>> advice = advise([cost(8, 0.01, 0.9), cost(16, 0.02, 0.99), cost(32, 0.04, 1), cost(64, 0.08, 0.98)])
    >>> advice.block_size, advice.good
    (16, (16, 32))
    """
    timed = all(cost.speed is not None for cost in costs)
    fast = [cost for cost in costs if cost.speed is None or cost.speed >= 1 - slower]
    good = [cost for cost in fast if _is_lean(cost, lost)]
    margin = f"at most {100 * lost:g} %"
    if timed:
        chosen = fast[0]
        why = f"the smallest that is at most {100 * slower:.1f} % slower than the fastest"
    elif good:
        chosen = good[-1]
        why = f"the largest whose memory overhead and lost reuse are {margin} each"
    else:
        chosen = min(costs, key=lambda cost: cost.overhead)
        why = f"the one with the least overhead; none keeps overhead and lost reuse at {margin}"
    sizes = tuple(cost.block_size for cost in good)
    limits = f"{f'At most {100 * slower:.1f} % slower, ' if timed else ''}{margin} overhead and {margin} lost reuse"
    first, last = TUTORIAL
    within = [size for size in sizes if first <= size <= last]
    text = (
        f"Block size {chosen.block_size} is {why}. Of its memory {100 * chosen.unused:.1f} % is unused, bookkeeping "
        f"adds {100 * chosen.bookkeeping:.3f} %, and {100 * chosen.reuse_lost:.1f} % of the reusable tokens are "
        f"computed again. {limits[0].upper()}{limits[1:]}: {_named(sizes)}; of the tutorial's {first} to {last}: "
        f"{_named(within)}."
    )
    return Advice(chosen.block_size, sizes, text)


def _is_lean(cost: BlockSizeCost, lost: float) -> bool:
    return cost.overhead <= lost and cost.reuse_lost <= lost


def _named(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes)) or "none"


def _chosen(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw rows, and keep their order, so that the workload is one of seconds."""
    drawn = np.random.default_rng(0).choice(len(lengths), min(len(lengths), MAX_SEQUENCES), replace=False)
    kept = lengths[np.sort(drawn)]
    return kept[: max(1, int(np.searchsorted(kept.sum(axis=1).cumsum(), MAX_TOKENS, side="right")))]


def _memory(spec: CacheSpec, block_size: int, lengths: NDArray[np.int64]) -> tuple[float, float]:
    """Hold all sequences at their full length; (unused share of the slots, bookkeeping as a share of K and V)."""
    spec = replace(spec, block_size=block_size)
    totals = lengths.sum(axis=1)
    blocks = sum(spec.blocks_per_sequence(int(total)) for total in totals)
    table = SequenceTable(BlockPool(blocks), block_size, max_sequences=len(totals))
    ids = table.admit(list(_different_tokens(totals))).ids
    stats = table.stats()
    table.release(ids)
    unused = 1 - int(totals.sum()) / (stats.used * block_size)
    stored_tokens = 4 * (stats.num_blocks + 1) * block_size  # token ids of published blocks, which stats leaves out
    return unused, (stats.bookkeeping_bytes + stored_tokens) / (stats.used * spec.bytes_per_block)


def _reuse_lost(block_size: int, lengths: NDArray[np.int64], system_tokens: int) -> float:
    """Serve conversations one after the other, none evicted; the share of reusable tokens that admit does not find."""
    turns = list(_different_tokens(lengths.sum(axis=1)))
    talks = [range(first, min(first + TURNS, len(turns))) for first in range(0, len(turns), TURNS)]
    total = sum(system_tokens + int(lengths[talk].sum()) for talk in talks)
    room = -(-total // block_size) + len(talks)
    table = SequenceTable(BlockPool(room), block_size, max_sequences=1)
    system = np.arange(system_tokens, dtype=np.int32)
    reusable = found = 0
    for number, talk in enumerate(talks):
        history = system
        for turn in talk:
            prompt = np.concatenate([history, turns[turn][: lengths[turn, 0]]])
            if number or turn > talk[0]:
                reusable += len(history)
            history = np.concatenate([history, turns[turn]])
            admission = table.admit([prompt])
            cached = int(admission.cached[0])
            found += cached
            table.commit(table.extend(admission.ids, len(history) - cached), history[cached:])
            table.release(admission.ids)
    return 1 - found / reusable if reusable else 0.0


def _different_tokens(counts: NDArray[np.int64]) -> Iterator[NDArray[np.int32]]:
    """Token ids of sequences no two of which begin alike, nor as the system prompt does."""
    random = np.random.default_rng(0)
    for count in counts:
        yield random.integers(1 << 20, 2**31 - 1, int(count), np.int32)
