"""The verbs in their usual order, for tests that are about something else; and what comes between or within them."""

import contextlib
import gc
import sys
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from pagedcache.core import SequenceTable


def feed(table: SequenceTable, ids: Any, news: list[Any], known: bool = True, see: Any = None) -> int:
    """Extend each row by its new tokens, let `see` look at the step, commit; the number of blocks published."""
    step = table.extend(ids, [len(new) for new in news])
    if see is not None:
        see(step)
    flat = np.concatenate([np.asarray(new, np.int32) for new in news]) if news else np.empty(0, np.int32)
    return table.commit(step, flat if known else None)


def prefill(table: SequenceTable, prompt: Any, see: Any = None, **options: Any) -> int:
    """Admit one prompt and commit what the prefix cache did not have; its handle."""
    admission = table.admit([prompt], **options)
    assert admission.status[0] == 0, "the test's prompt was not admitted"
    sid = int(admission.ids[0])
    feed(table, [sid], [list(prompt)[int(admission.cached[0]) :]], see=see)
    return sid


def blocks_of(table: SequenceTable, sid: int) -> list[int]:
    """Every block of the row: those in use, then those allotted and not yet written."""
    return [int(b) for b in table.block_table(sid)]


def position_of(table: SequenceTable, sid: int) -> int:
    """The next row coordinate."""
    return int(table.position(sid))


def snapshot(table: SequenceTable, *sids: int) -> tuple[Any, ...]:
    """Everything a caller can see, to compare before and after a call that must change nothing."""
    stats = table.stats()
    counters = (stats.free, stats.cached, stats.used, stats.sequences, stats.shared)
    counters += (stats.published, stats.tokens, stats.copies, stats.evictions, stats.query_tokens, stats.hit_tokens)
    return counters, [blocks_of(table, s) for s in sids], [position_of(table, s) for s in sids]


class Meddler:
    """An integer array that calls `act` when it is looked at."""

    def __init__(self, values: Any, act: Callable[[], Any]) -> None:
        self.values, self.act = values, act

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.act()
        return np.array(self.values)


class _Doomed:
    """In a cycle, so that only the collector ends it: then it acts."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act, self.me = act, self

    def __del__(self) -> None:
        self.act()


def struck(act: Callable[[], Any], call: Callable[[], Any], k: int) -> Any:
    """Call while a finalizer that acts strikes at the k-th allocation; needs the fixture `collector`."""
    thresholds = gc.get_threshold()
    doomed = _Doomed(act)
    gc.set_threshold(gc.get_count()[0] + k, 10, 10)
    del doomed
    gc.enable()
    try:
        return call()
    finally:
        gc.disable()
        gc.set_threshold(*thresholds)
        gc.collect()


def in_threads(*bodies: Callable[[np.random.Generator], Any], seconds: float = 1) -> None:
    """Call each again and again in a thread of its own, switched as often as can be; raise what one of them raises.

    A pool that is too full for a call is none of it.
    """
    failures: list[BaseException] = []
    stop = threading.Event()

    def repeat(seed: int, body: Callable[[np.random.Generator], Any]) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                with contextlib.suppress(MemoryError):
                    body(rng)
        except BaseException as error:
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=repeat, args=each) for each in enumerate(bodies)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        stop.wait(seconds)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]


def least_growth(body: Callable[[], Any], repeats: int = 3) -> int:
    """Bytes by which Python's memory grows when the body runs again, at the least.

    What the interpreter grows once (a table of names, a list of freed tuples) is in one of the runs; what is left
    behind each time is in all. Its cache of methods keeps names that were looked up, hundreds of them.
    """
    clear_caches = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
    tracemalloc.start()
    try:
        grown = []
        for _ in range(repeats + 1):  # the first one warms up
            gc.collect()
            clear_caches()
            before = tracemalloc.get_traced_memory()[0]
            body()
            gc.collect()
            clear_caches()
            grown.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    return min(grown[1:])
