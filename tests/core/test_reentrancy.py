"""The verbs of steps, beams, trees, pins, keys, events and swaps, called from within each other.

As in test_concurrency.py: arguments that call back when they are looked at, and finalizers that the collector
runs at any allocation. Whatever happens, the table stays sound, and rows that nobody meddled with are as they were.
"""

import contextlib
import itertools
import threading

import pytest
from drive import Meddler, blocks_of, feed, in_threads, position_of, prefill, struck

from pagedcache import EventKind, Namespace, salt
from pagedcache.core import BlockPool, PriorityTTL, SequenceTable
from pagedcache.errors import PagedCacheError

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared

KEYS = {"namespace": Namespace("n", secret=b"0123456789abcdef"), "keys": [[salt("s", 3)]]}


class World:
    """A table with everything in it: rows a, b of 18 tokens; c swapped out; a pin; an open step of d; idle blocks."""

    def __init__(self, policy=None):
        self.table = table = SequenceTable(
            BlockPool(64, policy), 4, max_sequences=12, steps_in_flight=3, events="tokens"
        )
        self.a, self.b, self.c, self.d = (prefill(table, [k] * 18) for k in range(1, 5))
        self.e = prefill(table, [5] * 18, **KEYS)
        table.release([prefill(table, [6] * 9)])
        table.pin([[1] * 9, [6] * 5], "pinned")
        table.swap_out([self.c])
        self.step = table.extend([self.d], 2)
        self.kept = blocks_of(table, self.b)

    def sound(self, but=()):
        self.table.check()
        if "b" not in but:
            assert position_of(self.table, self.b) == 18 and blocks_of(self.table, self.b)[:5] == self.kept[:5]


CALLS = {
    "reorder": lambda w, m: w.table.reorder(m([w.a, w.e]), m([1, 0])),
    "extend depths": lambda w, m: w.table.extend(m([w.a]), m([3]), depths=m([0, 1, 1])),
    "can_extend depths": lambda w, m: w.table.can_extend(m([w.a]), m([3]), depths=m([0, 1, 1])),
    "extend a cascade": lambda w, m: w.table.extend(m([w.a, w.e]), 1, cascade=True),
    "commit accepted": lambda w, m: w.table.commit(w.step, m([7, 7]), [m([0])]),
    "check_commit": lambda w, m: w.table.check_commit(w.step, m([7, 7]), [m([0])]),
    "moves": lambda w, m: w.step.moves([m([0, 1])]),
    "abandon": lambda w, m: w.table.abandon(w.step),
    "pin": lambda w, m: w.table.pin([m([2] * 9), m([6] * 9)], "more"),
    "unpin": lambda w, m: w.table.unpin("pinned"),
    "evict": lambda w, m: w.table.evict(3),
    "reset": lambda w, m: w.table.reset(),
    "invalidate": lambda w, m: w.table.invalidate(namespace="n"),
    "swap_list": lambda w, m: w.table.swap_list(m([w.a])),
    "swap_out": lambda w, m: w.table.swap_out(m([w.a])),
    "swap_in": lambda w, m: w.table.swap_in(m([w.c])),
    "admit keys": lambda w, m: w.table.admit([m([5] * 18)], reserve=m([2]), **KEYS),
    "match keys": lambda w, m: w.table.match([m([5] * 18)], **KEYS),
    "contents": lambda w, m: w.table.contents(w.e),
    "published": lambda w, m: w.table.published(),
    "published_blocks": lambda w, m: w.table.published_blocks(m([5] * 18), namespace=KEYS["namespace"]),
    "admit_swapped": lambda w, m: w.table.admit_swapped(
        18, m([5] * 18), namespace=KEYS["namespace"], keys=[salt("s", 3)]
    ),
    "admit_swapped like": lambda w, m: w.table.admit_swapped(18, None, like=w.a, shared=3, namespace="ours"),
    "publish": lambda w, m: w.table.publish(m([w.a, w.e])),
    "events": lambda w, m: w.table.events(),
    "open_steps": lambda w, m: w.table.open_steps,
}
ACTS = {
    "release": lambda w: w.table.release([w.a]),
    "release all": lambda w: w.table.release([w.a, w.d, w.e, w.c]),
    "evict": lambda w: w.table.evict(64),
    "reset": lambda w: w.table.reset(),
    "invalidate": lambda w: w.table.invalidate(namespace="n"),
    "unpin": lambda w: w.table.unpin("pinned"),
    "swap": lambda w: (w.table.swap_in([w.c]), w.table.swap_out([w.e])),
    "truncate": lambda w: w.table.truncate([w.a, w.e], [2, 2]),
    "another step": lambda w: w.table.extend([w.b], 3),
    "close the step": lambda w: w.table.commit(w.step, [9, 9]),
    "fork": lambda w: w.table.fork([w.a, w.e], 2),
    "new keys": lambda w: w.table.admit([[1] * 5] * 2, namespace="other", keys=[[salt("x")], [salt("y")]]),
    "fill the pool": lambda w: w.table.admit([[9] * 4] * 40),
    "read events": lambda w: w.table.events(),
}


def quietly(act):
    """The act, which may be refused in the state that it finds."""

    def acting():
        with contextlib.suppress(PagedCacheError, ValueError, KeyError):
            act()

    return acting


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("call", CALLS)
def test_an_argument_that_calls_back(call, act):
    world = World()

    meddle = quietly(lambda: ACTS[act](world))
    quietly(lambda: CALLS[call](world, lambda values: Meddler(values, meddle)))()
    world.sound()
    world.table.events()
    published = world.table.stats().published
    assert world.table.reset() == published and (world.table.events()["kind"] == EventKind.REMOVED).sum() == published


FINALIZERS = "release all|reset|unpin|swap|close the step|new keys|fill the pool".split("|")


@pytest.mark.parametrize("call", [name for name in CALLS if name != "events"])
def test_a_finalizer_in_the_middle_of_a_verb(collector, call):
    for k, act in itertools.product(range(1, 11), FINALIZERS):
        world = World(PriorityTTL([None, None]) if k % 2 else None)
        meddle = quietly(lambda world=world, act=act: ACTS[act](world))
        struck(meddle, quietly(lambda world=world: CALLS[call](world, list)), k)
        world.sound()


def test_a_finalizer_that_takes_the_name_of_a_pin(collector):
    """What is pinned and what is counted is the same, and only one of the two has the name."""
    options = {"namespace": "n", "keys": [[salt("s", 3)]] * 9}
    for k in range(1, 120):
        table = SequenceTable(BlockPool(60), 4)
        prefill(table, [5] * 9, namespace="n", keys=options["keys"][:1])

        def take(table=table):
            table.pin([[5] * 9], "x", namespace="n", keys=options["keys"][:1])

        with contextlib.suppress(ValueError):
            struck(quietly(take), lambda table=table: table.pin([[5] * 9] * 9, "x", **options), k)
        table.check()
        assert table.num_pinned in (2, 18)
        table.unpin("x")
        assert table.num_pinned == 0


def replay(stored, events):
    for event in events:
        digest = event["digest"].tobytes()
        if event["kind"] == EventKind.CLEARED:
            stored.clear()
        elif event["kind"] == EventKind.STORED:
            assert digest not in stored
            stored.add(digest)
        else:
            stored.remove(digest)
    return stored


def churn(table, first):
    for k in range(first, first + 3):
        with contextlib.suppress(MemoryError):
            table.release([prefill(table, [k] * 13)])


@pytest.mark.parametrize("overrun", [False, True])
def test_a_finalizer_that_publishes_and_evicts_while_events_are_read(collector, overrun):
    table = SequenceTable(BlockPool(12), 4, events="tokens")
    for k in range(1, 40, 2):
        for turn in range(240 if overrun else 5):
            churn(table, 10 * turn)
        stored = replay(set(), struck(lambda k=k: churn(table, 10_000 + 10 * k), table.events, k)) if overrun else None
        if stored is None:
            table.reset()
            table.events()
            churn(table, 0)
            stored = replay(set(), struck(lambda k=k: churn(table, 10_000 + 10 * k), table.events, k))
        assert len(replay(stored, table.events())) == table.stats().published
        table.check()


def test_a_finalizer_that_reads_events_while_events_are_read(collector):
    """Both get events; together, in the order of their calls' ends or not, they are all, and each is named rightly."""
    for k in range(1, 60):
        table = SequenceTable(BlockPool(12), 4, events="tokens")
        sid = prefill(table, [1] * 5)
        inner = []

        def act(table=table, sid=sid, inner=inner):
            feed(table, [sid], [[2] * 8])
            inner.append(table.events())

        outer = struck(act, table.events, k)
        assert len(outer) + sum(map(len, inner)) + len(table.events()) == 3 == table.stats().published


def test_threads_in_all_verbs():
    """Beams, trees, swaps, pins, keys and events at once; one engine with two steps in flight."""
    table = SequenceTable(BlockPool(300), 4, max_sequences=64, steps_in_flight=2)
    lock = threading.Lock()  # steps close in order: who opens one keeps others from doing so

    def engine(rng):
        with lock:
            admission = table.admit([[int(rng.integers(3))] * 9] * 2, namespace=f"n{rng.integers(4)}")
            if admission.status.any():
                table.release(admission.ids[admission.ids >= 0])
                return
            ids = admission.ids
            old = table.extend(ids, 9 - admission.cached)
            new = table.extend(ids, 3, depths=[0, 1, 1] * 2, cascade=True)
            table.commit(old, [1] * old.num_tokens)
            table.commit(new, [1] * 6, [[0, 2], [0]])
            table.reorder(ids, [1, 1])
            assert [table.position(s) for s in ids.tolist()] == [10, 10]
            table.swap_out(ids[:1])
            table.release(ids)

    def control(rng):
        name = f"p{rng.integers(1 << 60)}"
        table.pin([[1] * 9], name, namespace=f"n{rng.integers(4)}")
        table.cover(int(rng.integers(1, 1 << 40)))
        with contextlib.suppress(KeyError):
            table.unpin(name)
        table.evict(int(rng.integers(4)))
        table.retire((1 << 40) + 1)
        if rng.integers(9) == 0:
            table.invalidate(namespace=f"n{rng.integers(4)}")
        if rng.integers(30) == 0:
            table.reset()

    def look(rng):
        table.match([[1] * 9] * 3, namespace=f"n{rng.integers(40)}", keys=[[salt(str(rng.integers(40)))], None, []])
        stats = table.stats()
        assert stats.used + stats.free == 300

    in_threads(engine, control, look, look)
    table.reset()
    table.check()
    assert table.stats().free == 300 and table.stats().sequences == 0 and table.num_pinned == 0
