"""Workloads shared by the suites and by bars.py.

The data here defines what the recorded results mean: add to it, never change it.
"""

import numpy as np

BLOCK_SIZE = 16


def prompts(n, *, seed=0, low=1000, high=8000, prefixes=16, share=0.7, vocab=128_000):
    """Make n int32 prompts of `low`..`high` tokens; `share` of them begin with one of a few common prefixes."""
    rng = np.random.default_rng(seed)
    common = [rng.integers(0, vocab, rng.integers(512, 2048), dtype=np.int32) for _ in range(prefixes)]
    made = []
    for _ in range(n):
        prompt = rng.integers(0, vocab, rng.integers(low, high), dtype=np.int32)
        if rng.random() < share:
            prefix = common[rng.integers(prefixes)][: len(prompt)]
            prompt[: len(prefix)] = prefix
        made.append(prompt)
    return made


def chat_lengths(n, *, seed=0):
    """Draw (prompt, answer) token counts shaped like chat traffic: log-normal, medians near 120 and 200."""
    rng = np.random.default_rng(seed)
    prompt = np.clip(rng.lognormal(4.8, 1.1, n), 4, 2048).astype(np.int32)
    answer = np.clip(rng.lognormal(5.3, 0.8, n), 4, 1024).astype(np.int32)
    return prompt, answer


def running_table(n, context, *, room=256, max_sequences=None, **options):
    """Make a SequenceTable with n live sequences of `context` committed tokens each, no prefix shared.

    Returns the table and the int64 ids. Every sequence has `room` tokens of free blocks left. Options are the
    table's; each of its groups has as many blocks as if it kept all.
    """
    from pagedcache.core import BlockPool, SequenceTable

    rng = np.random.default_rng(n)
    blocks = n * -(-(context + room) // BLOCK_SIZE) * (len(options.get("side_groups", ())) + 1)
    table = SequenceTable(
        BlockPool(blocks), BLOCK_SIZE, max_sequences=max_sequences or n, max_length=context + room, **options
    )
    ids = np.empty(n, np.int64)
    for i in range(n):
        prompt = rng.integers(0, 128_000, context, dtype=np.int32)
        ids[i] = table.admit([prompt]).ids[0]
        table.commit(table.extend(ids[i : i + 1], context), prompt)
    return table, ids


def mean_run(tables):
    """Mean length of the runs of consecutive block ids in a list of block tables (blocks)."""
    blocks = sum(len(t) for t in tables)
    breaks = sum(int(np.count_nonzero(np.diff(t) != 1)) + 1 for t in tables if len(t))
    return blocks / breaks
