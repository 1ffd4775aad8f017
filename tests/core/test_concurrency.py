"""Verbs that meet: threads, finalizers that the garbage collector runs, arguments that call back.

C02 and contract 12: calls serialise. C13: any order of destruction.
"""

import contextlib
import gc
import sys
import threading

import numpy as np
import pytest
from drive import blocks_of, feed, position_of, prefill

from pagedcache.core import BlockPool, SequenceTable
from pagedcache.errors import PagedCacheError, StepClosed

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared

VERBS = {
    "admit": lambda t, a, n: t.admit([np.ones(20, np.int32)]),
    "match": lambda t, a, n: t.match([np.ones(20, np.int32)]),
    "extend": lambda t, a, n: t.abandon(t.extend(a, n)),
    "can_extend": lambda t, a, n: t.can_extend(a, n),
    "commit": lambda t, a, n: t.commit(t.extend(a, n), np.ones(4, np.int32)),
    "fork": lambda t, a, n: t.fork(a, 2, at=n),
    "truncate": lambda t, a, n: t.truncate(a, n),
    "release": lambda t, a, n: t.release(a),
    "block_table": lambda t, a, n: t.block_table(a[0]),
    "stats": lambda t, a, n: t.stats(),
}


class Owned:
    """What callers write around a handle. In a cycle, so that only the collector ends it."""

    def __init__(self, table, sid):
        self.table, self.sid, self.me = table, sid, self

    def __del__(self):
        self.table.release([self.sid])


@pytest.fixture
def collector():
    """The collector off, and its thresholds put back at the end."""
    thresholds, enabled = gc.get_threshold(), gc.isenabled()
    gc.collect()
    gc.disable()
    gc.freeze()  # what the test session holds need not be searched again and again
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    if enabled:
        gc.enable()


@pytest.mark.parametrize("verb", VERBS)
def test_a_finalizer_may_release_in_the_middle_of_any_verb(collector, verb):
    """The collector strikes at the k-th allocation, wherever inside the verb that is."""
    for k in range(1, 40):
        table = SequenceTable(BlockPool(64), 4, max_sequences=8)
        sids, counts = np.array([prefill(table, [1] * 18)]), np.array([4], np.int32)
        call = VERBS[verb]
        owned = Owned(table, prefill(table, [2] * 18))
        gc.set_threshold(gc.get_count()[0] + k, 10, 10)
        del owned
        gc.enable()
        call(table, sids, counts)
        gc.disable()
        table.check()
        gc.collect()
        table.check()
        if verb == "fork":
            assert table.stats().sequences == 3
        elif verb != "release":
            assert position_of(table, int(sids[0])) == {"truncate": 4, "commit": 22}.get(verb, 18)


class Meddler:
    """An integer array that calls `act` when it is looked at."""

    def __init__(self, values, act):
        self.values, self.act = values, act

    def __array__(self, *_, **__):
        self.act()
        return np.array(self.values)


MEDDLED = {
    "truncate positions": lambda t, a, m: t.truncate([a], m([4])),
    "truncate ids": lambda t, a, m: t.truncate(m([a]), [4]),
    "fork at": lambda t, a, m: t.fork([a], 1, at=m([4])),
    "fork ids": lambda t, a, m: t.fork(m([a]), 1, at=[4]),
    "extend counts": lambda t, a, m: t.extend([a], m([4])),
    "extend ids": lambda t, a, m: t.extend(m([a]), [4]),
    "can_extend counts": lambda t, a, m: t.can_extend([a], m([4])),
    "release": lambda t, a, m: t.release(m([a])),
    "admit": lambda t, a, m: t.admit([m([1] * 20)]),
    "admit pads": lambda t, a, m: t.admit([[1]], pads=m([4])),
    "match": lambda t, a, m: t.match([m([1] * 20)]),
    "commit": lambda t, a, m: t.commit(t.extend([a], 4), m([1] * 4)),
}
ACTS = {
    "release it": lambda t, a, b: t.release([a]),
    "release another": lambda t, a, b: t.release([b]),
    "name another": lambda t, a, b: t.fork([b], 0),
    "fork another": lambda t, a, b: t.fork([b], 2),
    "truncate it": lambda t, a, b: t.truncate([a], [2]),
    "open a step": lambda t, a, b: t.extend([b], 3),
    "fill the pool": lambda t, a, b: t.admit([[9] * 4] * 20),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("call", MEDDLED)
def test_an_argument_that_calls_back_finds_or_leaves_a_sound_table(call, act):
    table = SequenceTable(BlockPool(16), 4, max_sequences=8)
    a, b = prefill(table, [1] * 18), prefill(table, [2] * 18)
    before = blocks_of(table, b)

    def meddle():
        with contextlib.suppress(PagedCacheError):
            ACTS[act](table, a, b)

    with contextlib.suppress(PagedCacheError, ValueError):
        MEDDLED[call](table, a, lambda values: Meddler(values, meddle))
    table.check()
    if act != "release another":
        assert position_of(table, b) == 18 and blocks_of(table, b)[:5] == before


def test_threads_share_a_table():
    """Readers, sharers and one engine loop, switched as often as can be."""
    table = SequenceTable(BlockPool(400), 4, max_sequences=64)
    failures, stop = [], threading.Event()

    def worker(seed, body):
        rng = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                body(rng)
        except BaseException as error:
            failures.append(error)
            stop.set()

    def share(rng):
        admission = table.admit([[int(rng.integers(3))] * int(rng.integers(1, 20))], pads=[int(rng.integers(2))])
        if admission.status[0] == 0:
            ids = admission.ids.tolist()
            with contextlib.suppress(MemoryError):
                ids += table.fork(ids, 2, at=[table.position(ids[0])])[0].tolist()
            table.truncate(ids, [table.position(sid) for sid in ids])
            assert table.stats().sequences >= len(ids)
            table.release(ids)

    def engine(rng):
        admission = table.admit([[int(rng.integers(3))] * 12])
        if admission.status[0] == 0:
            cached = int(admission.cached[0])
            feed(table, admission.ids, [[1] * (12 - cached)])
            step = table.extend(admission.ids, 3)
            assert step.slots.tolist() == step.slots.tolist() and step.kv_lens.tolist() == [15]
            table.abandon(step)
            table.release(admission.ids)

    def look(rng):
        assert table.match([[int(rng.integers(3))] * 12])[0] <= 8
        stats = table.stats()
        assert stats.used + stats.free == 400 and stats.cached <= stats.free

    threads = [threading.Thread(target=worker, args=(n, body)) for n, body in enumerate([share, share, engine, look])]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        stop.wait(1.5)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]
    table.check()
    assert table.stats().free == 400 and table.stats().sequences == 0


@pytest.mark.parametrize("name", ["kv_indptr", "kv_indices", "kv_last_page_len", "slots", "block_tables", "diff"])
def test_a_finalizer_that_replaces_the_step_while_its_arrays_are_made(name):
    """The array of a step is made or refused; it is never filled from the next step's larger one."""

    class Owner:
        def __init__(self, finish):
            self.finish, self.cycle = finish, self

        def __del__(self):
            self.finish()

    for countdown in range(1, 10):
        table = SequenceTable(BlockPool(150), 4, max_sequences=100)
        ids = table.admit([[1]] * 100).ids
        gc.collect()
        gc.disable()
        step = table.extend(ids[:1], 1)
        later = []

        def finish(table=table, step=step, ids=ids, later=later):
            table.abandon(step)
            later.append(table.extend(ids, 1))

        owner = Owner(finish)
        threshold = gc.get_threshold()
        gc.set_threshold(gc.get_count()[0] + countdown, 10, 10)
        del owner
        gc.enable()
        try:
            with contextlib.suppress(StepClosed):
                assert len(getattr(step, name)) <= 2
        finally:
            gc.disable()
            gc.set_threshold(*threshold)
            gc.collect()
            gc.enable()
        for each in later:
            assert len(getattr(each, name)) >= 100 and len(each.slots) == 100
            table.abandon(each)
        table.check()
