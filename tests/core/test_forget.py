"""evict, reset, invalidate: what leaves the prefix cache, and what may not. DESIGN 4.9, 4.10."""

import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot

from pagedcache import Namespace, content
from pagedcache.core import BlockPool, PriorityTTL, SequenceTable


def test_evict_takes_so_many_oldest_first_and_tails_first(make):
    table = make()
    for k in range(3):
        table.release([prefill(table, [k] * 9)])
    prompts = [[k] * 9 for k in range(3)]
    assert table.evict(1) == 1 and table.match(prompts).tolist() == [4, 8, 8]
    assert table.evict(2) == 2 and table.match(prompts).tolist() == [0, 4, 8]
    assert table.stats().evictions == 3 and table.stats().published == 3
    assert table.evict(0) == 0 and table.evict(2**31 - 1) == 3 and table.evict(5) == 0
    assert table.stats().free == 16 and table.stats().cached == 0


def test_evict_leaves_what_somebody_holds(make):
    table = make()
    sid = prefill(table, range(9))
    table.release([prefill(table, [*range(8), 50, 51, 52, 53, 54])])
    assert table.evict(99) == 1 and table.match([range(9)])[0] == 8
    assert position_of(table, sid) == 9


def test_evict_follows_the_policy():
    table = SequenceTable(BlockPool(16, PriorityTTL([None, None])), 4)
    table.release([prefill(table, [1] * 9, priority=1)])
    table.release([prefill(table, [2] * 9, priority=0)])
    assert table.evict(2) == 2 and table.match([[1] * 9, [2] * 9]).tolist() == [8, 0]
    table.check()


@pytest.mark.parametrize("bad", [-1, -(2**63), 2**31, 2**64, 1.0, "1", None, True, [1]])
def test_evict_takes_an_int(make, bad):
    table = make()
    table.release([prefill(table, range(9))])
    before = snapshot(table)
    with pytest.raises((ValueError, TypeError), match="n_blocks"):
        table.evict(bad)
    assert snapshot(table) == before


def test_reset_forgets_everything_and_counts_it(make):
    table = make()
    sid = prefill(table, range(9))
    table.release([prefill(table, [7] * 9, namespace="a")])
    assert table.reset() == 4
    assert table.match([range(9)])[0] == table.match([[7] * 9], namespace="a")[0] == 0
    stats = table.stats()
    assert (stats.published, stats.cached, stats.used) == (0, 0, 3), "idle blocks are vacant, held ones stay"
    assert table.reset() == 0
    assert position_of(table, sid) == 9 and len(blocks_of(table, sid)) == 3


def test_live_sequences_publish_no_more_after_reset(make):
    """What they hold may be of the old weights; their kids and what reorders from them hold the same."""
    table = make()
    sid, other = prefill(table, range(9)), prefill(table, [5] * 3)
    table.reset()
    [[kid]] = table.fork([sid])
    assert feed(table, [sid, kid], [[1] * 8, [2] * 8]) == 0
    table.reorder([other, sid], [1, 0])
    assert feed(table, [other, sid], [[3] * 8, [4] * 8]) == 0
    table.truncate([sid], [0])
    assert feed(table, [sid], [range(9)]) == 0 and table.stats().published == 0
    assert feed(table, table.admit([range(9)]).ids, [range(9)]) == 2, "new ones do"


def test_a_row_alone_with_its_block_writes_in_place_after_reset(make):
    table = make()
    sid = prefill(table, range(8))
    table.truncate([sid], [6])
    table.reset()
    step = table.extend([sid], 1)
    assert len(step.copies) == 0
    table.commit(step, [9])


@pytest.mark.parametrize("close", ["commit", "abandon"])
@pytest.mark.parametrize("forget", ["reset", "invalidate"])
def test_forgetting_while_steps_are_open(make, forget, close):
    table = make(steps_in_flight=2)
    a, b = prefill(table, range(8)), prefill(table, [5] * 3)
    table.truncate([a], [6])
    steps = [table.extend([a, b], 3), table.extend([a], 2)]
    assert len(steps[0].copies) == 1
    assert (table.reset() if forget == "reset" else table.invalidate(namespace=None)) == 2
    table.check()
    for step in steps if close == "commit" else reversed(steps):
        published = table.commit(step, [1] * step.num_tokens) if close == "commit" else table.abandon(step)
        assert not published
    assert [position_of(table, s) for s in (a, b)] == ([11, 6] if close == "commit" else [6, 3])
    assert table.stats().published == 0
    table.release([a, b])
    assert table.stats().free == 16


def test_invalidate_takes_one_namespace_and_leaves_the_others(make):
    table = make(num_blocks=40)
    names = [None, "a", "ab", Namespace("b", secret=b"s" * 16)]
    for name in names:
        table.release([prefill(table, range(9), namespace=name)])
        table.release([prefill(table, [*range(4), 9, 9, 9, 9, 9], namespace=name)])
    for k, name in enumerate(names):
        assert table.invalidate(namespace=name) == 3, "a root and two that continue it"
        found = [int(table.match([range(9)], namespace=n)[0]) for n in names]
        assert found == [0] * (k + 1) + [8] * (3 - k)
        assert table.invalidate(namespace=name) == 0
    assert table.stats().free == 40 and table.stats().cached == 0


def test_invalidate_by_name_without_the_secret(make):
    """The name alone says which namespace it is."""
    table = make()
    table.release([prefill(table, range(9), namespace=Namespace("a", secret=b"s" * 16))])
    assert table.invalidate(namespace="a") == 2


def test_the_default_namespace_has_names_enough(make):
    table = make()
    for name in (None, "", b"", Namespace()):
        table.release([prefill(table, range(9))])
        assert table.invalidate(namespace=name) == 2


def test_live_sequences_of_the_namespace_alone_publish_no_more(make):
    table = make()
    mine, other, plain = (prefill(table, [1] * 6, namespace=name) for name in ("a", "b", None))
    table.invalidate(namespace="a")
    assert feed(table, [mine], [[1, 1]]) == 0
    assert feed(table, [other], [[1, 1]]) == 1 and feed(table, [plain], [[1, 1]]) == 1
    assert table.match([[1] * 9], namespace="b")[0] == table.match([[1] * 9])[0] == 8
    assert table.match([[1] * 9], namespace="a")[0] == 0


def test_invalidate_of_a_namespace_that_nobody_has_used(make):
    table = make()
    sid = prefill(table, range(9))
    before = snapshot(table, sid)
    assert table.invalidate(namespace="nobody") == 0 and snapshot(table, sid) == before


@pytest.mark.parametrize("bad", [5, 1.0, ["a"], "x" * 1025])
def test_what_is_no_namespace_is_refused(make, bad):
    table = make()
    sid = prefill(table, range(9))
    before = snapshot(table, sid)
    for call in (
        lambda: table.invalidate(namespace=bad),
        lambda: table.admit([[1]], namespace=bad),
        lambda: table.match([[1]], namespace=bad),
        lambda: table.pin([[1]], "x", namespace=bad),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()
    assert snapshot(table, sid) == before


def test_a_row_of_an_image_further_on_is_the_default_namespaces(make):
    table = make()
    sid = prefill(table, [1] * 9, keys=[[content("cat", 4, 6)]])
    assert table.invalidate(namespace=None) == 2
    table.check()
    assert feed(table, [sid], [[1] * 4]) == 0


@pytest.mark.parametrize("start", [4, 0])
@pytest.mark.parametrize("name", [None, "a"])
def test_an_image_that_two_namespaces_have_seen(make, name, start):
    """Each keeps to its own, wherever in a prompt the image stands."""
    table = SequenceTable(BlockPool(16), 4)
    prefill(table, [1] * 9, namespace="a", keys=[[content("cat", 4, 6)]])
    sid = prefill(table, [1] * 9, keys=[[content("cat", start, start + 2)]])
    assert table.invalidate(namespace=name) == 2
    table.check()
    assert feed(table, [sid], [[1] * 4]) == (name == "a")
    assert table.match([[1] * 9], namespace="a", keys=[[content("cat", 4, 6)]])[0] == (0 if name == "a" else 8)
    assert table.match([[1] * 9], keys=[[content("cat", start, start + 2)]])[0] == (8 if name == "a" else 0)
