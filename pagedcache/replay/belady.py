"""The bound: a cache that knows the future."""

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from pagedcache.replay.trace import Trace

__all__ = ["belady_hits", "next_uses"]


def next_uses(blocks: tuple[NDArray[np.int32], ...]) -> NDArray[np.int64]:
    """For each block of each request, the number of the next request that has it; the number of requests if none.

    Parameters
    ----------
    blocks : tuple of n int32 arrays
        As in :class:`Trace`; no request has a block twice, since a block stands for all before it too.

    Returns
    -------
    int64 [accesses]
        In the order of the requests, and of the blocks in each.

    Examples
    --------
    >>> next_uses((np.array([0, 1]), np.array([0, 2]), np.array([0, 1])))
    array([1, 2, 2, 3, 3, 3])
    """
    request = np.repeat(np.arange(len(blocks)), [len(ids) for ids in blocks])
    flat = np.concatenate(blocks)
    order = np.argsort(flat, kind="stable")  # the accesses of a block stand together, in order of time
    following = np.full(len(flat), len(blocks), np.int64)
    again = flat[order[1:]] == flat[order[:-1]]
    following[order[:-1][again]] = request[order[1:][again]]
    return following


def belady_hits(
    trace: Trace, capacity: int, *, progress: Callable[[int], object] = lambda done: None
) -> NDArray[np.int64]:
    """Leading blocks of each request that a cache finds which always drops the block needed latest.

    Of blocks needed at the same time the last of a prompt goes first. A block of the request in hand may go at once.

    Parameters
    ----------
    trace : Trace
        With blocks.
    capacity : int
        Blocks of the cache.
    progress : callable
        Told of the requests that are done.

    Returns
    -------
    int64 [n]
    """
    assert trace.blocks is not None
    uses = next_uses(trace.blocks).tolist()
    hits = np.zeros(len(trace), np.int64)
    kept: set[int] = set()
    # (-next use, -depth, block). Entries of earlier uses stay in it: they name a request that is past, so that those of
    # the blocks that are kept come before them.
    heap: list[tuple[int, int, int]] = []
    at = 0
    for number, ids in enumerate(trace.blocks):
        blocks = ids.tolist()
        hits[number] = next((i for i, block in enumerate(blocks) if block not in kept), len(blocks))
        kept.update(blocks)
        for depth, block in enumerate(blocks):
            heappush(heap, (-uses[at + depth], -depth, block))
        at += len(blocks)
        while len(kept) > capacity:
            kept.remove(heappop(heap)[2])
        progress(number + 1)
    return hits
