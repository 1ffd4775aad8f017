"""What a side of the comparison is: a library's attention over the buffers of one cell."""

import math
from time import perf_counter

import numpy as np

from _attention import data


class Unsupported(Exception):
    """The library cannot do this cell; the text says why."""


class Side:
    """A sample is one step of a model: prepare (not timed), plan, then `call` for up to 32 buffers, one per layer."""

    prepare = plan = staticmethod(lambda: None)

    def __init__(self, cell):
        self.cell = cell
        self.buffers = cell.buffers
        self.scale = 1 / math.sqrt(cell.heads[2])

    def call(self, i):
        """Attend over (in group "append": write to) buffer i."""
        raise NotImplementedError

    def output(self):
        """What the last call computed, [tokens, q_heads, size]; None where there is nothing to check."""
        raise NotImplementedError

    def error(self):
        """Largest error of buffer 0 against float64, or None."""
        self.prepare()
        self.plan()
        self.call(0)
        output = self.output()
        return None if output is None else data.largest_error(self.cell, np.asarray(output, np.float32))


def samples(side, seconds, at_least=2):
    """Time steps for so long; return the seconds per call of each. The first call is not counted."""
    times = []
    layers = min(side.buffers, 32)
    side.prepare()
    side.plan()
    side.call(0)
    end = perf_counter() + seconds
    at = 0
    while len(times) < at_least or perf_counter() < end:
        side.prepare()
        start = perf_counter()
        side.plan()
        for i in range(at, at + layers):
            side.call(i % side.buffers)
        times.append((perf_counter() - start) / layers)
        at = (at + layers) % side.buffers
    return times
