"""The project's own allocator under load: its `SequenceTable` and `BlockPool`, without K and V."""

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pagedcache.core import BlockPool, SequenceTable
from pagedcache.errors import OutOfBlocks
from pagedcache.replay.usage import Meter

__all__ = ["WATERMARK", "simulate_paged"]

WATERMARK = 0.01  # share of the blocks that admission leaves free, so that the next steps need not preempt
MAX_BLOCKS = 2**26


def simulate_paged(
    prompts: NDArray[np.int64],
    outputs: NDArray[np.int64],
    block_size: int,
    meter: Meter,
    *,
    watermark: float = WATERMARK,
    max_sequences: int = 1024,
    progress: Callable[[int], object] = lambda done: None,
) -> None:
    """Serve requests, first come first served, in blocks that are taken as tokens come.

    All of them are there from the beginning. In each step those at the head of the queue are admitted for which there
    are blocks, with a token to come, beside the watermark. One `extend` then stores the prompts of the new sequences
    and a token of each. Where it is short of blocks the youngest sequence gives its blocks back and waits at the head
    of the queue, to have all its tokens computed again. The simulation ends when nothing waits any more.

    Parameters
    ----------
    prompts, outputs : int64 [n]
        Tokens of prompt and answer, at least 1 each.
    block_size : int
        Tokens of a block, 1 to 1024.
    meter : Meter
        Takes what was held; its slots, rounded down to blocks, are the memory. The zero block, which a real pool has
        besides, is not counted.
    watermark : float
        Share of the blocks, 0 to less than 1.
    max_sequences : int
        Most sequences of a step.
    progress : callable
        Told of the requests that are done.

    Raises
    ------
    ValueError
        A request for which even the empty pool is too small.
    """
    num_blocks = meter.slots // block_size
    if not 0 <= watermark < 1:
        raise ValueError(f"watermark is {watermark}; it must be at least 0 and less than 1")
    spare = int(num_blocks * watermark)
    ends = prompts + outputs
    longest = int(ends.max())
    if -(-longest // block_size) + spare > num_blocks:
        raise ValueError(
            f"request {int(ends.argmax())} has {longest} tokens; {num_blocks} blocks of {block_size} tokens, "
            f"{spare} of them kept free, are too few: give more memory, or a smaller max_length"
        )
    if num_blocks > MAX_BLOCKS:
        raise ValueError(f"{num_blocks} blocks are more than a replay handles ({MAX_BLOCKS}); give less memory")
    pool = BlockPool(num_blocks)
    table = SequenceTable(
        pool, block_size, max_sequences=min(max_sequences, len(prompts), num_blocks), max_length=longest
    )
    anything = np.zeros(longest, np.int32)  # nothing is published, so tokens do not matter
    known = prompts.copy()  # tokens that a request has to have stored before it goes on
    queue = deque(range(len(prompts)))
    # of the sequences that run, the oldest first
    requests, ids = np.empty(0, np.int64), np.empty(0, np.int64)
    held = np.empty(0, np.int32)  # tokens, in memory
    due = np.empty(0, np.int32)  # tokens that will be there after the next step
    while True:
        room = pool.num_free - spare
        admitted: list[int] = []
        while queue and len(admitted) < table.max_sequences - len(ids):
            room -= -(-int(known[queue[0]] + 1) // block_size)
            if room < 0:
                break
            admitted.append(queue.popleft())
        if admitted:
            ids = np.append(ids, table.admit([anything[: known[i]] for i in admitted]).ids)
            requests = np.append(requests, admitted)
            held = np.append(held, np.zeros(len(admitted), np.int32))
            due = np.append(due, (known[admitted] + 1).astype(np.int32))
        if not queue:
            return
        while True:
            try:
                step = table.extend(ids, due - held)
                break
            except OutOfBlocks:
                table.release(ids[-1:])
                queue.appendleft(youngest := int(requests[-1]))
                known[youngest] = due[-1] - 1
                requests, ids, held, due = requests[:-1], ids[:-1], held[:-1], due[:-1]
                meter.preemptions += 1
        table.commit(step, None)
        held, due = due, due + np.int32(1)
        stored, handed = int(held.sum()), pool.num_used * block_size
        meter.add(1, stored, len(ids), final=stored, asked=handed, handed=handed)
        if meter.wants_map:
            for owner, handle in enumerate(ids.tolist()):
                first = (table.block_table(handle).astype(np.int64) - 1) * block_size
                slots = (first[:, None] + np.arange(block_size)).ravel()
                meter.paint(owner, slots, int(held[owner]), int(held[owner]), len(slots))
        finished = held >= ends[requests]
        if finished.any():
            table.release(ids[finished])
            keep = ~finished
            requests, ids, held, due = requests[keep], ids[keep], held[keep], due[keep]
            meter.done += int(finished.sum())
            progress(meter.done)
