"""What the prefix cache tells of itself: kinds, names, tokens, and how a reader that fell behind catches up."""

import threading

import numpy as np
import pytest
from drive import feed, in_threads, prefill, snapshot

from pagedcache import Namespace, adapter, content, salt
from pagedcache.core import BlockPool, EventKind, SequenceTable
from pagedcache.digests import prompt_digests, root_digest

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared

STORED, REMOVED, CLEARED, MOVED = EventKind.STORED, EventKind.REMOVED, EventKind.CLEARED, EventKind.MOVED
FIELDS = ("kind", "block", "digest", "parent", "namespace", "adapter", "keyed")
SECRET = b"0123456789abcdef"


@pytest.fixture
def table(make):
    return make(events="tokens")


class Reader:
    """Follows events as a consumer elsewhere would: what is stored, by digest."""

    def __init__(self, table):
        self.table, self.stored, self.kinds = table, {}, []

    def follow(self):
        for event in self.table.events():
            self.kinds.append(int(event["kind"]))
            digest = event["digest"].tobytes()
            if event["kind"] == CLEARED:
                self.stored.clear()
            elif event["kind"] == STORED:
                assert digest not in self.stored, "stored twice"
                self.stored[digest] = int(event["block"])
            elif event["kind"] == MOVED:
                assert self.stored[digest] != event["block"]
                self.stored[digest] = int(event["block"])
            else:
                assert self.stored.pop(digest) == event["block"]
        assert len(self.stored) == self.table.stats().published
        return self


def test_nothing_happened(table):
    events = table.events()
    assert len(events) == 0 and events.dtype.names == (*FIELDS, "tokens")


def test_a_stored_block_is_named_and_described(table):
    sid = prefill(table, range(9))
    blocks = table.block_table(sid)
    events = table.events()
    assert events["kind"].tolist() == [STORED, STORED] and events["block"].tolist() == blocks[:2].tolist()
    assert [d.tobytes() for d in events["digest"]] == prompt_digests(range(9), 4)
    assert events["parent"][0].tobytes() == bytes(32) and events["parent"][1] == events["digest"][0]
    assert events["tokens"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_tokens_are_told_only_if_asked_for(make):
    table = make(events="digests")
    prefill(table, range(9))
    events = table.events()
    assert events.dtype.names == FIELDS and len(events) == 2
    assert np.arange(4, dtype=np.int32).tobytes() not in events.tobytes()


def test_the_fingerprint_is_in_every_digest(make):
    table = make(events="digests", fingerprint=b"weights 7")
    prefill(table, range(9))
    assert [d.tobytes() for d in table.events()["digest"]] == prompt_digests(range(9), 4, fingerprint=b"weights 7")
    assert root_digest(4) != root_digest(4, b"weights 7")


@pytest.mark.parametrize(
    ("namespace", "keys"),
    [
        (None, None),
        ("a", None),
        (Namespace("a", secret=b"0123456789abcdef"), None),
        (None, [salt("s", 5)]),
        (Namespace("a", secret=b"0123456789abcdef"), [content("cat", 1, 7), salt("s", 9)]),
    ],
)
def test_digests_are_those_of_pagedcache_digests(table, namespace, keys):
    sid = prefill(table, range(10), namespace=namespace, keys=[keys])
    feed(table, [sid], [range(10, 14)])
    expected = prompt_digests(range(14), 4, namespace=namespace, keys=keys)
    first, later = [d.tobytes() for d in table.events()["digest"]], None
    assert first == expected and len(expected) == 3
    table.release([sid])
    table.evict(16)
    later = table.events()
    assert later["kind"].tolist() == [REMOVED] * 3
    assert [d.tobytes() for d in later["digest"]] == expected[::-1], "tails first, whatever the secret"


def test_every_event_is_told_once(table):
    reader = Reader(table)
    for k in range(30):
        table.release([prefill(table, [k % 7] * (4 + k % 9))])
        if k % 4 == 0:
            reader.follow()
            assert len(table.events()) == 0
    reader.follow()
    assert reader.kinds.count(REMOVED) > 0 and CLEARED not in reader.kinds


@pytest.mark.parametrize(
    "forget",
    [lambda t: t.evict(16), lambda t: t.reset(), lambda t: t.invalidate(namespace=None), lambda t: t.admit([[9] * 64])],
    ids=["evict", "reset", "invalidate", "memory wanted"],
)
def test_whatever_removes_a_block_tells(table, forget):
    reader = Reader(table)
    table.release([prefill(table, range(13))])
    reader.follow()
    forget(table)
    reader.follow()
    assert reader.kinds == [STORED] * 3 + [REMOVED] * 3


@pytest.mark.parametrize(
    "verb",
    [
        lambda t, s: t.truncate([s], 2),
        lambda t, s: t.release([s]),
        lambda t, s: t.fork([s]),
        lambda t, s: t.match([range(9)]),
        lambda t, s: t.admit([range(9)]),
        lambda t, s: t.abandon(t.extend([s], 9)),
        lambda t, s: t.swap_out([s]),
        lambda t, s: t.pin([range(9)], "x"),
        lambda t, s: t.commit(t.extend([s], 7), None),
    ],
    ids="truncate release fork match admit abandon swap_out pin unknown".split(),
)
def test_verbs_that_neither_publish_nor_forget_tell_nothing(table, verb):
    sid = prefill(table, range(9))
    table.events()
    verb(table, sid)
    assert len(table.events()) == 0


def test_an_adopted_block_is_not_told_again(table):
    a, b = table.admit([range(9)] * 2).ids
    feed(table, [a], [range(9)])
    feed(table, [b], [range(9)])
    assert table.stats().adopted == 2 and len(table.events()) == 2


def test_a_block_that_moves_is_not_removed(make):
    """Who heard REMOVED first would drop what continues the block; a router keeps prefixes as a tree."""
    table = make(num_blocks=49, events="tokens")
    reader, filler = Reader(table), table.pool.allocate(49)
    table.pool.decref(filler[1::2])
    sid = prefill(table, range(33))
    table.pool.decref(filler[::2])
    reader.follow()
    assert table.compact() > 0
    assert set(reader.follow().kinds[8:]) == {MOVED}
    blocks = table.block_table(sid)[:8].tolist()
    assert [reader.stored[digest] for digest in prompt_digests(range(33), 4)] == blocks
    table.release([sid])
    table.reset()
    assert reader.follow().stored == {}


def test_each_event_says_whose_it_is(table):
    """Contract 17: who passes events on can keep them within their namespace."""
    for namespace in (None, "a", Namespace("b", secret=SECRET), b"a\0"):
        sid = prefill(table, range(9), namespace=namespace)
        table.release([sid])
    table.reset()
    events = table.events()
    told = list(zip(events["kind"].tolist(), events["namespace"].tolist(), strict=True))
    assert told[:8] == [(STORED, name) for name in (b"", b"", b"a", b"a", b"b", b"b", b"a\0", b"a\0")]
    assert sorted(told[8:]) == sorted((REMOVED, name) for _, name in told[:8])
    digests = [digest.tobytes() for digest in events["digest"]]
    assert digests[2:4] == prompt_digests(range(8), 4, namespace="a")


@pytest.mark.parametrize(
    ("keys", "named", "keyed"),
    [
        (None, b"", [False, False, False]),
        ([adapter("lora")], b"lora", [False, False, False]),
        ([adapter("lora"), salt("s", 5)], b"lora", [False, True, True]),
        ([adapter("lora", start=1)], b"", [True, True, True]),
        ([content("cat", 8, 10)], b"", [False, False, True]),
    ],
    ids=["plain", "adapter", "adapter and salt", "late adapter", "image"],
)
@pytest.mark.parametrize("namespace", [None, "a"])
def test_each_event_says_what_else_tells_it_apart(table, keys, named, keyed, namespace):
    sid = prefill(table, range(13), namespace=namespace, keys=[keys])
    table.release([sid])
    table.reset()
    events = table.events()
    assert events["adapter"].tolist() == [named] * 6 and events["keyed"].tolist() == [*keyed, *keyed[::-1]]


def test_everything_can_be_told_anew(table):
    reader = Reader(table)
    prefill(table, range(9))
    reader.follow()
    prefill(table, range(20, 29))
    fresh = Reader(table)
    for event in table.events(anew=True):
        fresh.kinds.append(int(event["kind"]))
    assert fresh.kinds == [CLEARED] + [STORED] * 4 and len(table.events()) == 0


def overrun(table, rounds=1200):
    """More events than the log has room for; nothing is read meanwhile."""
    for k in range(rounds):
        table.release([prefill(table, [k] * 13)])


@pytest.mark.parametrize("detail", ["digests", "tokens"])
def test_a_reader_that_fell_behind_is_told_everything_anew(make, detail):
    table = make(events=detail)
    reader = Reader(table)
    prefill(table, range(9), namespace=Namespace("a", secret=b"0123456789abcdef"))
    reader.follow()
    overrun(table)
    reader.kinds.clear()
    reader.follow()
    assert reader.kinds == [CLEARED] + [STORED] * table.stats().published and len(reader.kinds) > 3
    assert set(prompt_digests(range(8), 4, namespace=Namespace("a", secret=b"0123456789abcdef"))) <= set(reader.stored)
    assert set(prompt_digests([1199] * 13, 4)) <= set(reader.stored)
    table.reset()
    assert reader.follow().stored == {}


def test_parents_come_first_after_an_overrun(table):
    overrun(table)
    seen = {bytes(32)}
    for event in table.events()[1:]:
        assert event["parent"].tobytes() in seen
        seen.add(event["digest"].tobytes())


def test_what_happens_after_an_overrun_is_told_one_by_one(table):
    reader = Reader(table)
    overrun(table)
    reader.follow()
    overrun(table, 20)
    assert CLEARED not in reader.follow().kinds[1:]
    overrun(table)
    reader.follow()
    assert reader.kinds.count(CLEARED) == 2


def test_a_cache_without_events_says_so(make):
    table = make()
    sid = prefill(table, range(9))
    before = snapshot(table, sid)
    with pytest.raises(ValueError, match="events="):
        table.events()
    assert snapshot(table, sid) == before


@pytest.mark.parametrize("bad", ["", "token", b"tokens", True, 1, ["tokens"]])
def test_what_events_may_be(bad):
    with pytest.raises((ValueError, TypeError), match="events"):
        SequenceTable(BlockPool(4), 4, events=bad)


def test_names_follow_keys_through_forks_and_swaps(table):
    keys = [salt("s", 2)]
    sid = prefill(table, range(6), keys=[keys])
    [[kid]] = table.fork([sid])
    table.release([sid])
    table.swap_out([kid])
    table.reset()
    [other] = table.admit([range(6)], keys=[keys]).ids
    feed(table, [other], [range(6)])
    table.swap_in([kid])
    assert feed(table, [kid, other], [[6, 7], [6, 7]]) == 1
    digests = [d.tobytes() for d in table.events()["digest"]]
    first, second = prompt_digests(range(8), 4, keys=keys)
    assert digests == [first, first, first, second]


def test_threads_may_share_the_reading():
    """Each event goes to one of them, whole; digests need the events before, whoever drained those."""
    table = SequenceTable(BlockPool(64), 4, events="tokens")
    told = []
    in_order = threading.Lock()

    def work(rng):
        table.release([prefill(table, rng.integers(0, 3, 30))])

    def read(_):
        with in_order:
            told.append(table.events())

    in_threads(work, read, read)
    told.append(table.events())
    kinds = np.concatenate([events["kind"] for events in told])
    cleared = np.flatnonzero(kinds == CLEARED)  # readers that were too slow: all that counts comes after it
    kinds = kinds[cleared[-1] :] if cleared.size else kinds
    assert (kinds == STORED).sum() - (kinds == REMOVED).sum() == table.stats().published
    table.check()
