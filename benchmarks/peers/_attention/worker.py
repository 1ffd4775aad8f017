"""One library in a process of its own: answers requests, one JSON object per line, until its input ends.

``python -m _attention.worker MODULE OPTIONS``, from `driver`. Libraries bring their own threads and their own OpenMP,
which would disturb each other in one process.
"""

import gc
import json
import os
import sys
from importlib import import_module
from types import SimpleNamespace

from _attention import probe
from _attention.cells import Cell
from _attention.side import Unsupported, samples


class Worker:
    def __init__(self, module, options):
        self.module, self.options = module, options
        self.sides = {}

    def open(self, cell):
        """Make the sides of a cell; the largest error of each, or why it failed."""
        self.close()
        self.sides = self.module.open_sides(Cell.from_dict(cell), self.options)
        report = {}
        for name, side in list(self.sides.items()):
            try:
                report[name] = {"error": side.error()}
            except Exception as problem:
                report[name] = {"failed": told(problem)}
                del self.sides[name]
        return report

    def time(self, side, seconds):
        return samples(self.sides[side], seconds)

    def read(self, side):
        """Bytes per second at which this side's own memory can be read."""
        return probe.read_bandwidth(self.sides[side].memory(), self.options.threads)

    def flops(self):
        return probe.flops(self.options.threads)

    def close(self):
        self.sides = {}
        gc.collect()


def told(problem):
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text[:240]}"


def main(name, options):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    options = SimpleNamespace(**json.loads(options))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])

    def answer(**fields):
        print(json.dumps(fields), file=answers, flush=True)

    try:
        module = import_module(f"_attention.{name}")
        answer(value=module.version(options))
    except Exception as problem:
        answer(failed=told(problem))
        return
    worker = Worker(module, options)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(value=getattr(worker, request.pop("do"))(**request))
        except Unsupported as reason:
            answer(unsupported=str(reason))
        except Exception as problem:
            answer(failed=told(problem))


if __name__ == "__main__":
    main(*sys.argv[1:])
