"""What a memory holds under load, by how it is divided: reservations in one piece, and blocks."""

from collections.abc import Callable, Sequence
from functools import partial

from pagedcache._sizes import integer, one_of
from pagedcache.replay.allocators import Allocator, Buddy, FirstFit
from pagedcache.replay.contiguous import RESERVATIONS, simulate_contiguous
from pagedcache.replay.paged import WATERMARK, simulate_paged
from pagedcache.replay.trace import Trace
from pagedcache.replay.usage import Meter, Usage
from pagedcache.spec import MAX_BLOCK_SIZE

__all__ = ["CONTIGUOUS", "MAX_SLOTS", "replay_memory"]

MAX_SLOTS = 2**27  # a map of them takes 5 bytes each

#: Name -> what it asks for, and from which allocator.
CONTIGUOUS: dict[str, tuple[str, Callable[[int], Allocator]]] = {
    "Orca-Max": ("max", Buddy),
    "Orca-Pow2": ("pow2", Buddy),
    "Orca-Oracle": ("oracle", Buddy),
    "Pow2, first fit": ("pow2", FirstFit),
    "Oracle, first fit": ("oracle", FirstFit),
}


def replay_memory(
    trace: Trace,
    slots: int,
    max_length: int,
    *,
    contiguous: Sequence[str] = tuple(CONTIGUOUS),
    block_sizes: Sequence[int] = (16,),
    watermark: float = WATERMARK,
    progress: Callable[[str, int], object] = lambda system, done: None,
) -> list[Usage]:
    """Serve the requests of a trace from the same memory in several ways.

    Parameters
    ----------
    trace : Trace
        Requests with prompts and answers; see :meth:`Trace.select`. They all wait from the beginning on, since the
        question is what the memory holds when it is short.
    slots : int
        Tokens for which the memory has room.
    max_length : int
        Longest legal length of a sequence: what Orca-Max asks for, and the most that Orca-Pow2 does.
    contiguous : sequence of str
        Some of `CONTIGUOUS`.
    block_sizes : sequence of int
        One paged system for each, on the project's own allocator.
    watermark : float
        See :func:`simulate_paged`.
    progress : callable
        Called with the system and how many requests are done.

    Returns
    -------
    list of Usage
        The contiguous systems, then "paged-16" and the like.

    Raises
    ------
    ValueError
        A request that is too long or has no answer, an unknown system, a memory that is too small or never short.

    Examples
    --------
    >>> from pagedcache.replay import shipped_trace
    >>> trace = shipped_trace("sharegpt").select(500, max_length=2048, seed=0)
    >>> for usage in replay_memory(trace, 15_728, 2048, contiguous=["Orca-Max"]):
    ...     print(f"{usage.system}: {usage.stored:.0%} of the memory holds tokens, {usage.batch:.0f} sequences")
    Orca-Max: 19% of the memory holds tokens, 7 sequences
    paged-16: 97% of the memory holds tokens, 36 sequences
    """
    integer("slots", slots, maximum=MAX_SLOTS)
    integer("max_length", max_length)
    for size in block_sizes:
        integer("block_size", size, maximum=MAX_BLOCK_SIZE)
    longest = int((trace.prompts + trace.outputs).max())
    if longest > max_length or trace.prompts.min() < 1 or trace.outputs.min() < 1:
        raise ValueError(
            f"{trace.name}: requests must have a prompt, an answer and at most max_length={max_length} tokens, and the "
            f"longest has {longest}; leave others out with Trace.select"
        )
    usages = []
    for name in contiguous:
        reservation, allocator = CONTIGUOUS[one_of("system", name, CONTIGUOUS)]
        asked = RESERVATIONS[reservation](trace.prompts, trace.outputs, max_length)
        meter = Meter(slots, len(trace))
        simulate_contiguous(
            trace.prompts, trace.outputs, asked, allocator(slots), meter, progress=partial(progress, name)
        )
        usages.append(meter.usage(name))
    for size in block_sizes:
        name, meter = f"paged-{size}", Meter(slots, len(trace))
        simulate_paged(trace.prompts, trace.outputs, size, meter, watermark=watermark, progress=partial(progress, name))
        usages.append(meter.usage(name))
    return usages
