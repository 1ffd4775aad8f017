"""Bars of sharing and of the prefix index: forks, copy-on-write, tags, events, adversaries. Part of ``bars.py``."""

from statistics import median

import numpy as np
from suites.baseline import PyBlockManager
from suites.common import BLOCK_SIZE, prompts, running_table
from suites.measuring import Clock, Row

from pagedcache.core import BlockPool, EventKind, SequenceTable

N = 256  # sequences
CONTEXT = 2048  # tokens of each


def sharing(rounds):
    """Fork 256 sequences and let the forks go; then 256 forks of one sequence append into its last block."""
    clock = Clock()
    table, ids = running_table(N, CONTEXT, room=BLOCK_SIZE, max_sequences=2 * N)
    manager = PyBlockManager(N * 144, BLOCK_SIZE)
    py_ids = [manager.admit(CONTEXT) for _ in range(N)]
    for i in range(rounds):
        for _ in range(4):
            kids = clock.time("fork", lambda: table.fork(ids, 1)).ravel()
            clock.time("free", lambda kids=kids: table.release(kids))
        if i % 4 == 0:
            py_kids = clock.time("python fork", lambda: [manager.fork(seq_id) for seq_id in py_ids])
            clock.time("python free", lambda py_kids=py_kids: manager.release(py_kids))
    blocks = N * CONTEXT // BLOCK_SIZE
    for verb in ("fork", "free"):
        yield Row(f"{verb} of {N} sequences, per block", clock.median(verb) / blocks * 1e9, "ns/block", 3)
        yield Row("  times pure Python", clock.median(f"python {verb}") / clock.median(verb), "x", 40, at_least=True)
    yield copy_on_write(clock, rounds)


def copy_on_write(clock, rounds):
    table = SequenceTable(BlockPool(2 * N + 200), BLOCK_SIZE, max_sequences=N + 1)
    manager = PyBlockManager(2 * N + 200, BLOCK_SIZE)
    length = CONTEXT - BLOCK_SIZE // 2  # the last block is half full
    prompt = np.zeros(length, np.int32)
    parent = table.admit([prompt]).ids
    table.commit(table.extend(parent, length), prompt)
    py_parent = manager.admit(length)
    for i in range(rounds):
        kids = table.fork(parent, N).ravel()
        step = clock.time("copies", lambda kids=kids: table.extend(kids, 1))
        assert len(step.copies) == N
        table.commit(step, None)
        table.release(kids)
        if i % 4 == 0:
            py_kids = [manager.fork(py_parent) for _ in range(N)]
            clock.time("python copies", lambda py_kids=py_kids: manager.append(py_kids))
            manager.release(py_kids)
    ratio = clock.median("python copies") / clock.median("copies")
    return Row(f"append on {N} forks, copying, times pure Python", ratio, "x", 12, at_least=True)


def hashing(rounds):
    """The chained tags of a long prompt."""
    clock, blocks = Clock(), 2048
    index = SequenceTable(BlockPool(1), BLOCK_SIZE).index
    tokens = np.random.default_rng(0).integers(0, 128_000, blocks * BLOCK_SIZE, dtype=np.int32)
    for _ in range(rounds):
        clock.time("tags", lambda: index.tags(tokens))
    yield Row(f"hash, per block of {BLOCK_SIZE} tokens", clock.median("tags") / blocks * 1e9, "ns/block", 20)


def fill(clock, name, table, batch):
    """Each prompt comes, is computed and published, and goes."""

    def one(prompt):
        admission = table.admit([prompt])
        new = prompt[int(admission.cached[0]) :]
        table.commit(table.extend(admission.ids, len(new)), new)
        table.release(admission.ids)

    for prompt in batch:
        clock.time(name, lambda prompt=prompt: one(prompt))


def events(rounds):
    """Recording what is stored and removed, in a pool that evicts all the time; draining is not counted.

    Four prompts between two drains, which the log has room for.
    """
    clock, batch = Clock(), prompts(16)
    tables = {
        name: SequenceTable(BlockPool(2048), BLOCK_SIZE, max_length=8192, events=kind)
        for name, kind in (("off", None), ("on", "digests"))
    }
    for i in range(rounds):
        for k, prompt in enumerate(batch):
            for name in ("on", "off") if (i + k) % 2 else ("off", "on"):  # whoever comes second meets warm tokens
                fill(clock if i else Clock(), name, tables[name], [prompt])
            if k % 4 == 3:
                assert EventKind.CLEARED not in tables["on"].events()["kind"]
    ratios = [on / off for on, off in zip(clock.seconds["on"], clock.seconds["off"], strict=True)]
    yield Row("events on, times the same without", median(ratios), "x", 1.3)


def adversaries(rounds):
    """Cost per block of prompts against that of random ones in a pool with room."""
    clock, rng = Clock(), np.random.default_rng(0)
    long = [rng.integers(0, 128_000, CONTEXT, dtype=np.int32) for _ in range(24)]
    twins = np.zeros((24, CONTEXT), np.int32)  # equal up to the last token of the last block but one
    twins[:, -BLOCK_SIZE - 1] = np.arange(24)
    room, few = 32 * CONTEXT // BLOCK_SIZE, 2 * CONTEXT // BLOCK_SIZE
    cases = {
        "plain": (room, 64, long),
        "equal tags": (room, 0, long),
        "tags of 2 bits": (room, 2, long),
        "equal tags, found again": (room, 0, [prompt[: 62 * BLOCK_SIZE] for prompt in long[:1] * 24]),
        "twins": (room, 64, list(twins)),
        "full pool": (few, 64, long),
    }
    for i in range(rounds):
        for name, (blocks, bits, batch) in cases.items():
            table = SequenceTable(BlockPool(blocks), BLOCK_SIZE, tag_bits=bits)
            fill(Clock(), name, table, batch[:2])
            fill(clock if i else Clock(), name, table, batch[2:])
    cost = {name: median(clock.seconds[name]) / len(cases[name][2][0]) for name in cases}
    for name in list(cases)[1:]:
        yield Row(f"{name}, times a plain prompt, per block", cost[name] / cost["plain"], "x", 3)
