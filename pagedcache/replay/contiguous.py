"""Systems that keep each sequence in one range of memory, taken when it starts: as engines did before paging.

How much they ask for is what tells them apart; the names are those of the PagedAttention paper (arXiv 2309.06180),
which compares with three guesses at how Orca may have done it.
"""

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from pagedcache.replay.allocators import Allocator
from pagedcache.replay.usage import Meter

__all__ = ["RESERVATIONS", "simulate_contiguous"]

Lengths = NDArray[np.int64]


def _longest(prompts: Lengths, outputs: Lengths, max_length: int) -> Lengths:
    return np.full(len(prompts), max_length, np.int64)


def _power_of_two(prompts: Lengths, outputs: Lengths, max_length: int) -> Lengths:
    room = 1 << np.array([int(n - 1).bit_length() for n in outputs.tolist()], np.int64)
    return np.minimum(prompts + room, max_length)


def _oracle(prompts: Lengths, outputs: Lengths, max_length: int) -> Lengths:
    return prompts + outputs


#: Slots that a request asks for: of the longest legal length; of its prompt, and its answer rounded up to a power of
#: two (a guess that is at most twice too large); or of exactly what it will need, which nobody can know.
RESERVATIONS: dict[str, Callable[[Lengths, Lengths, int], Lengths]] = {
    "max": _longest,
    "pow2": _power_of_two,
    "oracle": _oracle,
}


def simulate_contiguous(
    prompts: Lengths,
    outputs: Lengths,
    asked: Lengths,
    allocator: Allocator,
    meter: Meter,
    *,
    progress: Callable[[int], object] = lambda done: None,
) -> None:
    """Serve requests, first come first served, each in one range of slots.

    All of them are there from the beginning. A request starts as soon as the allocator has room for it, and none
    behind it starts before. In its first step its prompt and a token are stored, in each further one a token. What it
    asked for is its own until it is done. Time goes from one end of a request to the next, since nothing but lengths
    changes in between. The simulation ends when the last request has started.

    Parameters
    ----------
    prompts, outputs, asked : int64 [n]
        Tokens of prompt and answer, at least 1 each; slots to ask for, no fewer than both together.
    allocator : Allocator
        All free.
    meter : Meter
        Takes what was held.
    progress : callable
        Told of the requests that have started.

    Raises
    ------
    ValueError
        A request for which even the empty memory is too small.
    """
    now = prompt_sum = started_sum = final = asking = handed = 0  # sums over the sequences that run
    ends: list[tuple[int, int]] = []  # heap of (step, request)
    running: dict[int, tuple[int, int, int]] = {}  # request -> start, slots given, step of its start
    lengths = list(zip(prompts.tolist(), outputs.tolist(), asked.tolist(), strict=True))
    waiting = 0  # the first request that has not started
    while True:
        while waiting < len(lengths):
            prompt, output, size = lengths[waiting]
            place = allocator.allocate(size)
            if place is None:
                break
            running[waiting] = (*place, now)
            heappush(ends, (now + output, waiting))
            prompt_sum, started_sum, final = prompt_sum + prompt, started_sum + now, final + prompt + output
            asking, handed = asking + size, handed + place[1]
            waiting += 1
        progress(waiting)
        if waiting == len(lengths):
            return
        if not running:
            raise ValueError(
                f"request {waiting} asks for {lengths[waiting][2]} slots in a row; the memory has {meter.slots}: "
                "give more memory, or a smaller max_length"
            )
        if meter.wants_map:
            for owner, (request, (start, given, since)) in enumerate(running.items()):
                prompt, output, size = lengths[request]
                meter.paint(owner, np.arange(start, start + given), prompt + now - since + 1, prompt + output, size)
        stored = prompt_sum - started_sum + len(running) * (now + 1)
        meter.add(ends[0][0] - now, stored, len(running), final=final, asked=asking, handed=handed)
        now = ends[0][0]
        while ends and ends[0][0] == now:
            request = heappop(ends)[1]
            start, given, since = running.pop(request)
            allocator.release(start)
            prompt, output, size = lengths[request]
            prompt_sum, started_sum, final = prompt_sum - prompt, started_sum - since, final - prompt - output
            asking, handed = asking - size, handed - given
            meter.done += 1
