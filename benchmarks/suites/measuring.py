"""Rows of the table of bars, and the clock that fills them."""

import time
from collections import defaultdict
from dataclasses import dataclass
from statistics import median


@dataclass
class Row:
    """One line of the table; `bar` is None where the figure is only told."""

    name: str
    measured: float
    unit: str
    bar: float | None = None
    at_least: bool = False

    @property
    def ok(self) -> bool:
        return self.bar is None or (self.measured >= self.bar if self.at_least else self.measured <= self.bar)

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        bar = "" if self.bar is None else f"{sign} {self.bar:g}"
        verdict = "" if self.bar is None else "ok" if self.ok else "MISSED"
        return f"{self.name:<52}{self.measured:>10.2f} {self.unit:<12}{bar:>8}  {verdict}"


class Clock:
    """Collects durations by name; `median` of each is what counts."""

    def __init__(self):
        self.seconds = defaultdict(list)

    def time(self, name, call):
        start = time.perf_counter_ns()
        result = call()
        self.seconds[name].append((time.perf_counter_ns() - start) * 1e-9)
        return result

    def median(self, name):
        return median(self.seconds[name])
