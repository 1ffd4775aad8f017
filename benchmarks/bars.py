"""Measure the bars of the allocator core, plans for GPUs and engine, and print a table: ``python benchmarks/bars.py``.

Times are medians of interleaved rounds in one process, so that a change of the machine's speed meets both sides of a
ratio alike. Run it on a quiet machine; the exit status is 1 where a bar is missed.
"""

import argparse
import sys
import time
from collections import defaultdict
from statistics import median

import numpy as np
from bars_groups import cached_prompt, hybrid_decode
from bars_sharing import adversaries, events, hashing, sharing
from suites.baseline import PyBlockManager
from suites.churn import Churn
from suites.common import BLOCK_SIZE, prompts, running_table
from suites.footprint import bytes_per_block
from suites.gpu_plan import plan_of_step
from suites.measuring import Clock, Row
from suites.serving import running_engine

from pagedcache.core import BlockPool, SequenceTable


class Decode:
    """n sequences at context 2048; each call of `core` or `python` is a burst of steps of one token each."""

    burst = 16

    def __init__(self, n, clock):
        self.n, self.clock = n, clock
        self.table, self.ids = running_table(n, 2048)
        self.counts = np.ones(n, np.int32)
        self.manager = PyBlockManager(n * 144, BLOCK_SIZE)
        self.py_ids = [self.manager.admit(2048) for _ in range(n)]
        self.tokens = np.random.default_rng(n).integers(0, 128_000, (self.burst, n), dtype=np.int32)

    def extend(self):
        step = self.table.extend(self.ids, self.counts)
        return step, step.slots, step.positions, step.block_tables, step.kv_lens

    def core(self, publish):
        name = f"commit {self.n}" if publish else f"commit nothing {self.n}"
        for tokens in self.tokens:
            step = self.clock.time(f"extend {self.n}", self.extend)[0]
            self.clock.time(name, lambda step=step, tokens=tokens: self.table.commit(step, tokens if publish else None))

    def python(self):
        for _ in range(self.burst):
            self.clock.time(f"python append {self.n}", lambda: self.manager.append(self.py_ids))

    def rows(self, bar):
        n, us = self.n, 1e6
        extend, commit = self.clock.median(f"extend {n}"), self.clock.median(f"commit {n}")
        yield Row(f"decode step, {n} sequences at 2048", extend * us, "us", bar)
        yield Row(f"  with commit of its tokens, {n}", (extend + commit) * us, "us")
        yield Row(f"  pure Python, {n}", self.clock.median(f"python append {n}") * us, "us")


def decode(rounds):
    clock = Clock()
    small, large = Decode(256, clock), Decode(1024, clock)
    for i in range(rounds):
        for side in (small, large):
            side.core(publish=i % 2 == 0)
            side.python()
    yield from small.rows(10)
    yield from large.rows(40)
    python = clock.median("python append 256")
    extend = clock.median("extend 256")
    yield Row("256-way append, times pure Python", python / extend, "x", 30, at_least=True)
    closed = extend + clock.median("commit nothing 256")
    yield Row("  with commit(step, None)", python / closed, "x")


def prompts_in(clock, table, batch, prefix):
    """Admit, fill and publish each prompt; return the ids."""
    ids = []
    for prompt in batch:
        admission = clock.time(f"{prefix} admit", lambda prompt=prompt: table.admit([prompt]))
        cached = int(admission.cached[0])
        new, n = prompt[cached:], len(prompt) - cached
        step = clock.time(f"{prefix} extend", lambda ids=admission.ids, n=n: table.extend(ids, n))
        clock.time(f"{prefix} commit", lambda step=step, new=new: table.commit(step, new))
        ids.append(admission.ids[0])
    return np.array(ids, np.int64)


def admission(rounds):
    """Prompts of 1000 to 8000 tokens, 70 % with a shared prefix, 32 alive at once, into a full pool (evicting)."""
    batch = prompts(320)
    tokens = sum(map(len, batch))
    table = SequenceTable(BlockPool(32 * 512), BLOCK_SIZE, max_sequences=32, max_length=8192)
    per_token, released = defaultdict(list), []
    for i in range(rounds):
        clock, freed, blocks = Clock(), 0.0, 0
        for start in range(0, len(batch), 32):
            ids = prompts_in(clock, table, batch[start : start + 32], "p")
            blocks += sum(-(-len(p) // BLOCK_SIZE) for p in batch[start : start + 32])
            began = time.perf_counter_ns()
            table.release(ids)
            freed += time.perf_counter_ns() - began
        if i == 0:
            continue  # the first round meets cold buffers and an empty pool
        for name in ("p admit", "p extend", "p commit"):
            per_token[name].append(sum(clock.seconds[name]) / tokens * 1e9)
        released.append(freed / blocks)
    admit, extend, commit = (median(per_token[f"p {verb}"]) for verb in ("admit", "extend", "commit"))
    yield Row("admit + commit, per prompt token", admit + commit, "ns/token", 15)
    yield Row("  with extend (slots, positions)", admit + extend + commit, "ns/token")
    yield Row("release, per block", median(released), "ns/block", 15)


def batches(rounds):
    clock = Clock()
    pool, manager = BlockPool(65536), PyBlockManager(65536, BLOCK_SIZE)
    for n in (256, 1024, 4096):
        for i in range(rounds):
            if i // 16 % 2 == 0:  # in turns of 16, as decode steps
                clock.time(f"core {n}", lambda n=n: pool.decref(pool.allocate(n)))
            else:
                clock.time(f"python {n}", lambda n=n: manager.decref(manager.allocate(n)))
        yield Row(f"allocate and free {n} blocks", clock.median(f"core {n}") * 1e6, "us")
        ratio = clock.median(f"python {n}") / clock.median(f"core {n}")
        yield Row("  times pure Python", ratio, "x", 25, at_least=True)


def gpu_plans(rounds):
    """What a GPU's kernels are to do in a step, planned on the CPU."""
    clock = Clock()
    table, ids = running_table(256, 2048, room=16)
    step = table.extend(ids, 1)
    for _ in range(rounds):
        clock.time("plan", lambda: plan_of_step(step))
    yield Row("plan of 256 sequences at 2048 for a GPU", clock.median("plan") * 1e6, "us", 50)


def engine_steps(rounds):
    """All that an engine does in a decode step beside the model."""
    clock = Clock()
    engine = running_engine(256)
    for _ in range(rounds):
        clock.time("step", engine.step)
    yield Row("engine step of 256 sequences, model apart", clock.median("step") * 1e6, "us", 50)


def space():
    yield Row("bookkeeping, per block (tokens apart)", bytes_per_block(), "bytes", 80)
    yield Row("mean run of ids, 90 % use, churn", Churn(publish=False).run(1500), "blocks", 3, at_least=True)
    yield Row("  released blocks kept as prefix cache", Churn(publish=True).run(1500), "blocks", 3, at_least=True)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run, not how fast")
    quick = parser.parse_args(argv).quick
    missed = 0
    measured = (
        decode(2 if quick else 14),
        admission(2 if quick else 6),
        batches(50 if quick else 2000),
        sharing(3 if quick else 40),
        hashing(5 if quick else 200),
        events(2 if quick else 12),
        adversaries(2 if quick else 12),
        hybrid_decode(2 if quick else 8),
        cached_prompt(5 if quick else 200),
        gpu_plans(5 if quick else 500),
        engine_steps(5 if quick else 2000),
        space(),
    )
    for rows in measured:
        for row in rows:
            row.bar = None if quick else row.bar
            print(row, flush=True)
            missed += not row.ok
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
