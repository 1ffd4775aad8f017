"""Verbs that meet: threads, finalizers that the garbage collector runs, arguments that call back.

C02 and contract 12: calls serialise. C13: any order of destruction.
"""

import contextlib
import gc
import time

import numpy as np
import pytest
from drive import Meddler, blocks_of, feed, in_threads, position_of, prefill, struck

from pagedcache import salt
from pagedcache.core import BlockPool, PriorityTTL, SequenceTable
from pagedcache.errors import OutOfBlocks, PagedCacheError, StepClosed, StepOpen

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


@pytest.mark.parametrize("verb", VERBS)
def test_a_finalizer_may_release_in_the_middle_of_any_verb(collector, verb):
    """The collector strikes at the k-th allocation, wherever inside the verb that is."""
    for k in range(1, 40):
        table = SequenceTable(BlockPool(64), 4, max_sequences=8)
        sids, counts = np.array([prefill(table, [1] * 18)]), np.array([4], np.int32)
        other = prefill(table, [2] * 18)
        struck(lambda t=table, sid=other: t.release([sid]), lambda t=table, s=sids, n=counts: VERBS[verb](t, s, n), k)
        table.check()
        if verb == "fork":
            assert table.stats().sequences == 3
        elif verb != "release":
            assert position_of(table, int(sids[0])) == {"truncate": 4, "commit": 22}.get(verb, 18)


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
        assert table.match([[int(rng.integers(3))] * 12])[0] <= 11
        stats = table.stats()
        assert stats.used + stats.free == 400 and stats.cached <= stats.free

    in_threads(share, share, engine, look, seconds=1.5)
    table.check()
    assert table.stats().free == 400 and table.stats().sequences == 0


def test_threads_control_the_cache_that_an_engine_fills():
    """Verbs over the whole index and over keys, while blocks are published, swapped, moved and evicted."""
    pool = BlockPool(64, PriorityTTL([0.01, None]))
    table = SequenceTable(pool, 4, max_sequences=16, events="tokens")
    keys = [None, [salt("s")], [salt("t", 5)]]

    def engine(rng):
        admission = table.admit(
            [[int(rng.integers(3))] * 13],
            keys=[keys[rng.integers(3)]],
            namespace=[None, "tenant"][rng.integers(2)],
            priority=int(rng.integers(2)),
        )
        if admission.status[0] == 0:
            ids = admission.ids
            feed(table, ids, [[1] * (13 - int(admission.cached[0]))])
            with contextlib.suppress(OutOfBlocks):
                table.swap_out(ids)
                table.swap_in(ids)
            table.release(ids)

    def control(rng):
        names = [str(name) for name in rng.integers(3, size=2)]
        with contextlib.suppress(ValueError, KeyError):
            table.pin([[int(rng.integers(3))] * 12], names[0], keys=[keys[rng.integers(3)]])
        with contextlib.suppress(KeyError):
            table.unpin(names[1])
        table.evict(2)
        table.events()
        pool.policy.advance(0.01)

    def forget(rng):
        time.sleep(0.001)
        table.invalidate(namespace="tenant")
        table.reset()
        with contextlib.suppress(StepOpen):
            table.compact()

    in_threads(engine, control, control, forget, seconds=1.5)
    table.reset()
    table.check()
    assert table.stats().free == 64 and table.stats().sequences == 0


def test_a_table_that_goes_while_other_threads_use_its_pool(collector):
    """Rows, pins, copies of an open step and held destinations come back while others take blocks and drop them."""
    pool = BlockPool(600)

    def come_and_go(rng):
        table = SequenceTable(pool, 4, max_sequences=64)
        ids = table.admit([[1] * 30] * 30).ids
        if ids[-1] >= 0:
            feed(table, ids, [[int(k)] * 30 for k in range(30)])
            table.pin([[int(k)] * 28 for k in range(8)], "eight")
            table.fork(ids)
            if rng.integers(2):
                table.extend(ids, 1)
            else:
                table.begin_compaction()
        del table, ids
        gc.collect()  # an open step and its table refer to each other

    def take(rng):
        with contextlib.suppress(OutOfBlocks):
            blocks = pool.allocate(int(rng.integers(1, 9)))
            pool.incref(blocks)
            pool.decref(blocks)
            assert pool.refcount(blocks[0]) == 1
            pool.decref(blocks)

    in_threads(come_and_go, take, take, seconds=1.5)
    pool.check()
    assert pool.num_free == 600


@pytest.mark.parametrize("name", ["kv_indptr", "kv_indices", "kv_last_page_len", "slots", "block_tables", "diff"])
def test_a_finalizer_that_replaces_the_step_while_its_arrays_are_made(collector, name):
    """The array of a step is made or refused; it is never filled from the next step's larger one."""
    for countdown in range(1, 10):
        table = SequenceTable(BlockPool(150), 4, max_sequences=100)
        ids = table.admit([[1]] * 100).ids
        step = table.extend(ids[:1], 1)
        later = []

        def finish(table=table, step=step, ids=ids, later=later):
            table.abandon(step)
            later.append(table.extend(ids, 1))

        with contextlib.suppress(StepClosed):
            assert struck(finish, lambda step=step: len(getattr(step, name)), countdown) <= 2
        for each in later:
            assert len(getattr(each, name)) >= 100 and len(each.slots) == 100
            table.abandon(each)
        table.check()
