"""What a call of attention costs beside the kernel, from ONNX Runtime and from JAX: microseconds, with the bar.

In a fresh virtual environment, from the root of this repository:

    pip install . "jax==0.10.2" "onnxruntime==1.32.0" onnx
    python benchmarks/peers/embedding_calls.py

A decode step of a model of 16 layers, float32, 8 query and 2 K/V heads of 64; every side has one thread, K and V of its
own in ordinary pages, and the same tables. They take turns, and of each the fastest one counts. The kernel alone is
`write` and `attend` of pagedcache.h with a plan that is there already, called through ctypes, less two such calls that
do nothing. "Added" is a side's time per layer less the kernel's:

- onnxruntime: a session is run and then `KVCache.attend` on the arrays that it is bound to, less the session run alone
  (io_binding made once). The plan of the step is made in its first layer.
- jax: all layers in one jitted function, pools donated; steps one after the other, `block_until_ready` after the last.
- jax, a call per layer: a jitted function for each layer. It is not judged: it has JAX's own dispatch in it.

JAX makes the plan in every layer. Pools must be where they were afterwards, or nothing counts.
"""

import argparse
import os
import sys

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "PAGEDCACHE_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from _embedding.cells import CELLS, LAYERS, Setting  # noqa: E402
from _embedding.jax_side import JaxSide  # noqa: E402
from _embedding.kernel_side import KernelSide  # noqa: E402
from _embedding.onnxruntime_side import OnnxRuntimeSide  # noqa: E402

BAR = 15.0  # microseconds
SIDES = {"onnxruntime": OnnxRuntimeSide, "jax": JaxSide, "jax, a call per layer": JaxSide.by_layer}
JUDGED = ("onnxruntime", "jax")


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="turns of every side; the fastest counts")
    parser.add_argument("--steps", type=int, default=5, help="decode steps in a turn")
    return parser.parse_args(argv)


def sides_of(setting):
    """The kernel first; frameworks that are not installed are named and left out."""
    sides = {"kernel": KernelSide(setting)}
    for name, make in SIDES.items():
        try:
            sides[name] = make(setting)
        except ImportError as reason:
            print(f"{name}: left out ({reason})")
    return sides


def measured(sides, rounds, steps):
    """Microseconds per layer of each side: the fastest turn, less the fastest of what is not attention."""
    turns = {name: ([], []) for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            for kept, run in zip(turns[name], (side.run, side.rest), strict=True):
                kept.append(run(steps))
    return {name: (min(whole) - min(rest)) / (steps * LAYERS) * 1e6 for name, (whole, rest) in turns.items()}


def main(argv=None):
    asked = arguments(argv)
    worst = dict.fromkeys(JUDGED)
    print(f"{'sequences x tokens':>20} {'side':<22} {'us per layer':>13} {'added':>7}")
    for cell in CELLS:
        sides = sides_of(Setting(*cell))
        times = measured(sides, asked.rounds, asked.steps)
        for name, taken in times.items():
            sides[name].check()
            added = taken - times["kernel"]
            print(
                f"{cell[0]:>12} x {cell[1]:<5} {name:<22} {taken:13.1f} {'' if name == 'kernel' else f'{added:7.1f}'}"
            )
            if name in JUDGED:
                worst[name] = max(added, worst[name] or added)
    missed = 0
    for name, added in worst.items():
        if added is not None:
            print(
                f"{'met   ' if added <= BAR else 'MISSED'} {name}: {added:.1f} us added at most; the bar is {BAR:.0f}"
            )
            missed |= added > BAR
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
