"""pin and unpin: prompts that eviction leaves alone. DESIGN 3 (verbs) and 4.10."""

import pytest
from drive import feed, prefill, snapshot

from pagedcache import salt
from pagedcache.core import BlockPool, SequenceTable

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared


@pytest.fixture
def cached(make):
    """A table with two idle blocks of a prompt of nine."""
    table = make()
    table.release([prefill(table, range(9))])
    return table


def test_pinned_blocks_survive_every_eviction(cached):
    assert cached.pin([range(9)], "system") == 2
    assert (cached.stats().pinned, cached.stats().cached, cached.stats().used) == (2, 0, 2)
    assert cached.evict(16) == 0
    cached.release([prefill(cached, [7] * 56)])
    assert cached.admit([[8] * 57]).status[0] == 1, "the pinned blocks are not for others"
    assert cached.match([range(9)])[0] == 8


def test_unpin_gives_them_back(cached):
    cached.pin([range(9)], "system")
    assert cached.unpin("system") == 2
    assert (cached.stats().pinned, cached.stats().cached) == (0, 2)
    assert cached.evict(16) == 2 and cached.match([range(9)])[0] == 0


def test_unpin_of_blocks_that_a_sequence_holds_frees_none(cached):
    cached.pin([range(9)], "system")
    [sid] = cached.admit([range(9)]).ids
    assert cached.unpin("system") == 0
    assert cached.release([sid]) == 3


def test_a_pin_holds_what_its_sequence_lets_go(make):
    table = make()
    sid = prefill(table, range(9))
    assert table.pin([range(9)], "system") == 2
    assert table.release([sid]) == 1 and table.evict(16) == 0


@pytest.mark.parametrize(("prompt", "blocks"), [(range(8), 2), (range(7), 1), (range(3), 0), ([], 0), ([9] * 9, 0)])
def test_full_published_blocks_only(cached, prompt, blocks):
    """The last full block too, other than in admit: nothing has to be left to compute."""
    assert cached.pin([prompt], "system") == blocks == cached.stats().pinned
    assert cached.unpin("system") == blocks


def test_what_is_published_later_is_not_pinned(cached):
    assert cached.pin([range(12)], "system") == 2
    cached.release([prefill(cached, range(13))])
    assert cached.evict(16) == 1 and cached.match([range(13)])[0] == 8


def test_what_is_not_committed_is_not_pinned(make):
    table = make()
    [sid] = table.admit([range(9)]).ids
    step = table.extend([sid], 9)
    assert table.pin([range(9)], "system") == 0
    table.abandon(step)


def test_a_block_counts_once_for_each_prompt_and_pin(cached):
    assert cached.pin([range(9), range(9)], "both") == 4 == cached.stats().pinned == cached.num_pinned
    assert cached.pin([range(5)], "one") == 1
    assert cached.stats().used == 2 and cached.stats().pinned == 5
    assert cached.unpin("both") == 1, "the first block is still pinned"
    assert cached.unpin("one") == 1


def test_pins_hold_at_most_half_of_the_pool(make):
    table = make(num_blocks=9)
    assert table.max_pinned == 4
    table.release([prefill(table, range(21))])
    before = snapshot(table)
    with pytest.raises(ValueError, match=r"5 blocks.*0 are pinned.*max_pinned is 4"):
        table.pin([range(20)], "all")
    assert snapshot(table) == before and table.num_pinned == 0
    assert table.pin([range(12)], "three") == 3
    with pytest.raises(ValueError, match=r"2 blocks.*3 are pinned"):
        table.pin([range(8)], "two")
    assert table.pin([range(4)], "one") == 1
    assert table.pin([[5]], "none") == 0
    table.unpin("three")
    assert table.pin([range(12)], "three") == 3


@pytest.mark.parametrize("most", [0, 3, 9])
def test_the_cap_of_pins_is_given_when_the_table_is_made(make, most):
    table = make(num_blocks=9, max_pinned=most)
    assert table.max_pinned == most
    table.release([prefill(table, range(33))])
    before = snapshot(table)
    if most < 8:
        with pytest.raises(ValueError, match=rf"{most + 1} blocks.*max_pinned is {most}.*make the cache with a larger"):
            table.pin([range(4 * most + 4)], "more")
    assert snapshot(table) == before and table.num_pinned == 0
    assert table.pin([range(4 * most)], "just right") == min(most, 8)


@pytest.mark.parametrize("bad", [-1, 10, 1.5, "3", True])
def test_a_wrong_cap_is_refused(bad):
    with pytest.raises((ValueError, TypeError), match="max_pinned"):
        SequenceTable(BlockPool(9), 4, max_pinned=bad)


def test_a_name_is_taken_once(cached):
    cached.pin([range(9)], "a")
    before = snapshot(cached)
    with pytest.raises(ValueError, match="'a' is taken"):
        cached.pin([range(4)], "a")
    assert snapshot(cached) == before and cached.num_pinned == 2
    cached.unpin("a")
    assert cached.pin([range(4)], "a") == 1


def test_a_pin_of_nothing_has_its_name(cached):
    assert cached.pin([], "nothing") == 0
    with pytest.raises(ValueError, match="nothing"):
        cached.pin([range(9)], "nothing")
    assert cached.unpin("nothing") == 0


@pytest.mark.parametrize("name", ["x", "", "known "])
def test_unpin_of_an_unknown_name_says_what_there_is(cached, name):
    cached.pin([range(9)], "known")
    with pytest.raises(KeyError, match="'known'"):
        cached.unpin(name)
    assert cached.num_pinned == 2


@pytest.mark.parametrize("name", [None, 3, b"a", ["a"]])
def test_a_name_is_a_str(cached, name):
    for call in (lambda: cached.pin([range(9)], name), lambda: cached.unpin(name)):
        with pytest.raises(TypeError, match=type(name).__name__):
            call()
    assert cached.num_pinned == 0


def test_a_name_whose_hash_calls_a_verb():
    for turn in range(1, 5):
        table = SequenceTable(BlockPool(16), 4)
        table.release([prefill(table, range(9))])
        hashed = []

        class Name(str):
            def __hash__(self, table=table, hashed=hashed, turn=turn):
                hashed.append(None)
                if len(hashed) == turn:
                    table.evict(16)
                return super().__hash__()

        table.pin([range(9)], Name("x"))
        table.check()
        assert table.match([range(9)])[0] >= 4 * table.num_pinned


def test_each_pin_has_its_keys_and_namespace(make):
    table = make()
    for options in ({}, {"namespace": "a"}, {"keys": [[salt("s")]]}):
        table.release([prefill(table, range(9), **options)])
    assert table.pin([range(9)], "mine", namespace="a") == 2
    assert table.pin([range(9)], "salted", keys=[[salt("s", 4)]]) == 1, "what lies before the salt is everybody's"
    assert table.evict(16) == 3
    assert table.match([range(9)], namespace="a")[0] == 8 and table.match([range(9)])[0] == 4
    assert table.match([range(9)], keys=[[salt("s")]])[0] == 0


def test_reset_and_invalidate_drop_pins(make):
    table = make()
    for name in ("a", "b"):
        table.release([prefill(table, range(9), namespace=name)])
        table.pin([range(9)], name, namespace=name)
    assert table.invalidate(namespace="a") == 2 and table.num_pinned == 2
    with pytest.raises(KeyError):
        table.unpin("a")
    assert table.reset() == 2 and table.num_pinned == 0 and table.stats().used == 0
    with pytest.raises(KeyError):
        table.unpin("b")


def test_a_pinned_block_is_copied_by_its_writer(cached):
    """Contract 1: a pin is a holder."""
    cached.pin([range(9)], "system")
    [sid] = cached.admit([range(9)]).ids
    cached.truncate([sid], [6])
    step = cached.extend([sid], 1)
    assert len(step.copies) == 1
    cached.commit(step, [5])
    feed(cached, [sid], [[1]])
    assert cached.match([range(9)])[0] == 8


@pytest.mark.parametrize("prompts", [None, 5, [5], "ab", [[-1]], [[2**31]], [[1.5]], [[True]]])
def test_bad_prompts_pin_nothing_and_leave_the_name(cached, prompts):
    with pytest.raises((ValueError, TypeError)):
        cached.pin(prompts, "x")
    assert cached.num_pinned == 0 and cached.pin([range(9)], "x") == 2
