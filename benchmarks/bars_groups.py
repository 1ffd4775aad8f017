"""Bars of caches with several layer groups, and of long prompts that are cached whole. Part of ``bars.py``."""

from statistics import mean

import numpy as np
from suites.common import BLOCK_SIZE, running_table
from suites.measuring import Clock, Row

from pagedcache.core import BlockPool, SequenceTable

N = 256  # sequences
CONTEXT = 2048  # tokens of each
WINDOW = 512


def hybrid_decode(rounds):
    """A decode step with one full and five sliding groups, beside one with the full group alone."""
    clock = Clock()
    sides = {"1 group": 0, "6 groups": 5}
    tables = {
        name: running_table(N, CONTEXT, side_groups=[(WINDOW, 0, False)] * count, max_step_tokens=CONTEXT)
        for name, count in sides.items()
    }
    tokens = np.random.default_rng(0).integers(0, 128_000, (16, N), dtype=np.int32)

    def extend(table, ids):
        step = table.extend(ids, 1)
        for group in step.groups:
            group.slots, group.block_tables, group.kv_starts  # noqa: B018
        return step

    for _ in range(rounds):
        for name, (table, ids) in tables.items():
            for new in tokens:
                step = clock.time(name, lambda table=table, ids=ids: extend(table, ids))
                clock.time(f"{name}, commit", lambda table=table, step=step, new=new: table.commit(step, new))
    one, six = clock.median("1 group"), clock.median("6 groups")
    yield Row(f"decode step, {N} sequences, 1 full + 5 sliding groups", six * 1e6, "us")
    yield Row("  times one group", six / one, "x", 3)
    whole = {name: mean(clock.seconds[name]) + mean(clock.seconds[f"{name}, commit"]) for name in sides}
    yield Row("  mean of all steps, with commit", whole["6 groups"] * 1e6, "us")
    yield Row("  times one group", whole["6 groups"] / whole["1 group"], "x")


def cached_prompt(rounds, length=8192):
    """Admission of a prompt that is in the cache up to its last token, and its release."""
    clock = Clock()
    table = SequenceTable(BlockPool(2 * length // BLOCK_SIZE), BLOCK_SIZE, max_sequences=2)
    prompt = np.random.default_rng(0).integers(0, 128_000, length, dtype=np.int32)
    ids = table.admit([prompt]).ids
    table.commit(table.extend(ids, length), prompt)
    table.release(ids)
    for _ in range(rounds):
        admission = clock.time("admit", lambda: table.admit([prompt]))
        assert admission.cached[0] == length - 1
        table.release(admission.ids)
    yield Row(f"admit {length} tokens, all cached, per token", clock.median("admit") / length * 1e9, "ns/token", 10)
