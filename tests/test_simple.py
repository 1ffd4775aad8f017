"""The simple API: sequences over pages that they share, and what they refuse."""

import gc
import random

import numpy as np
import pytest
from simple_setting import DIM, HEADS, Setting

from pagedcache import OutOfBlocks


@pytest.fixture
def s():
    return Setting()


def test_tokens_lie_in_pages(s):
    kv = s.fill("a", 10)
    table = s.sequences.sequences["a"]
    assert list(table.logical_to_physical) == [0, 1, 2]
    assert table.get_physical_page(3) == -1
    assert len(s.manager.free_pages) == 5
    np.testing.assert_array_equal(s.stored("a"), kv)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_first_writer_of_a_shared_page_gets_a_copy(s, order):
    """W19, in both orders."""
    shared = s.fill("a", 6)
    s.sequences.clone_sequence("a", "b")
    assert len(s.manager.allocated_pages) == 2
    new = {name: s.token() for name in order}
    for name in order:
        s.sequences.append_kv(name, 6, *new[name])
    assert len(s.manager.allocated_pages) == 3  # one copy, not two
    for name in order:
        np.testing.assert_array_equal(s.stored(name)[:, :6], shared)
        np.testing.assert_array_equal(s.stored(name)[:, 6], new[name])
    s.sequences.free_sequence("a")
    before = s.manager.allocated_pages
    s.sequences.append_kv("b", 7, *s.token())
    assert s.manager.allocated_pages == before  # b is the only holder: no copy


def test_overwriting_an_earlier_position_copies_a_shared_page(s):
    shared = s.fill("a", 7)
    s.sequences.clone_sequence("a", "b")
    token = s.token()
    s.sequences.append_kv("b", 1, *token)
    np.testing.assert_array_equal(s.stored("a"), shared)
    expected = shared.copy()
    expected[:, 1] = token
    np.testing.assert_array_equal(s.stored("b"), expected)
    tables = s.sequences.sequences
    assert tables["a"].get_physical_page(0) != tables["b"].get_physical_page(0)
    assert tables["a"].get_physical_page(1) == tables["b"].get_physical_page(1)
    assert tables["b"].num_tokens == 7


def test_overwriting_a_page_of_one_holder_stays_in_place(s):
    s.fill("a", 7)
    before = dict(s.sequences.sequences["a"].logical_to_physical)
    token = s.token()
    s.sequences.append_kv("a", 2, *token)
    assert s.sequences.sequences["a"].logical_to_physical == before
    np.testing.assert_array_equal(s.stored("a")[:, 2], token)


def test_a_page_that_a_caller_holds_is_not_written(s):
    page = s.manager.allocate_page()
    table = s.sequences.create_sequence("a")
    table.map_page(0, page)
    s.sequences.append_kv("a", 0, *s.token())
    assert table.get_physical_page(0) != page
    assert not s.manager.pages[page].keys.any()
    assert s.manager.pages[page].ref_count == 1


def test_ids_can_be_anything_hashable_and_come_again(s):
    for seq_id in (1, "a", (2, 3)):
        s.sequences.create_sequence(seq_id)
    s.sequences.free_sequence(1)
    assert s.sequences.create_sequence(1).num_tokens == 0


def test_an_id_that_is_taken_raises(s):
    s.fill("a", 5)
    s.fill("b", 1)
    before = s.state()
    for call in (
        lambda: s.sequences.create_sequence("a"),
        lambda: s.sequences.clone_sequence("a", "b"),
        lambda: s.sequences.clone_sequence("a", "a"),
    ):
        with pytest.raises(ValueError, match="exists already"):
            call()
        assert s.state() == before


def test_unknown_ids_raise(s):
    for call in (
        lambda: s.sequences.append_kv("x", 0, *s.token()),
        lambda: s.sequences.clone_sequence("x", "y"),
        lambda: s.sequences.free_sequence("x"),
    ):
        with pytest.raises(KeyError, match="no sequence 'x'"):
            call()
    assert not s.sequences.sequences


@pytest.mark.parametrize(
    ("position", "error"), [(6, ValueError), (-1, ValueError), (2**40, ValueError), (1.0, TypeError), (True, TypeError)]
)
def test_positions_beyond_the_next_raise(s, position, error):
    s.fill("a", 5)
    before = s.state()
    with pytest.raises(error, match="token_pos"):
        s.sequences.append_kv("a", position, *s.token())
    assert s.state() == before


@pytest.mark.parametrize(
    "bad",
    [
        np.ones((HEADS + 1, DIM), np.float32),
        np.ones((HEADS, DIM + 1), np.float32),
        np.ones(DIM, np.float32),
        np.float32(1),
        np.ones((HEADS, DIM), np.int64),
        np.full((HEADS, DIM), "x"),
        None,
    ],
    ids=lambda bad: f"{getattr(bad, 'dtype', None)}{getattr(bad, 'shape', '')}",
)
@pytest.mark.parametrize("position", [2, 4, 7], ids=["shared page", "earlier", "new page"])
def test_bad_tokens_change_nothing(s, bad, position):
    s.fill("a", 8)
    s.sequences.clone_sequence("a", "b")
    s.fill("c", 7)
    before = s.state()
    for key, value in ((bad, s.token()[0]), (s.token()[0], bad)):
        with pytest.raises((ValueError, TypeError)):
            s.sequences.append_kv("c" if position == 7 else "a", position, key, value)
        assert s.state() == before


def test_exhausted_pool_changes_nothing():
    s = Setting(pages=2)
    s.fill("a", 7)
    s.sequences.clone_sequence("a", "b")
    s.sequences.create_sequence("c")
    before = s.state()
    for seq_id, position in (("b", 7), ("b", 2), ("c", 0)):
        with pytest.raises(OutOfBlocks, match="No free pages"):
            s.sequences.append_kv(seq_id, position, *s.token())
        assert s.state() == before
    with pytest.raises(MemoryError):  # what the tutorial raises
        s.manager.allocate_page()
    s.sequences.free_sequence("b")
    s.sequences.append_kv("a", 7, *s.token())


def test_thousands_of_cycles_leak_nothing():
    s = Setting(pages=24)
    choice = random.Random(1)
    live, names = [], 0
    for _ in range(4000):
        verb = choice.choice("create append append append clone free".split())
        try:
            if verb == "create" or not live:
                live.append(names)
                s.sequences.create_sequence(names)
                names += 1
            elif verb == "append":
                seq_id = choice.choice(live)
                position = choice.randint(0, s.sequences.sequences[seq_id].num_tokens)
                s.sequences.append_kv(seq_id, position, *s.token())
            elif verb == "clone":
                s.sequences.clone_sequence(choice.choice(live), names)
                live.append(names)
                names += 1
            else:
                s.sequences.free_sequence(live.pop(choice.randrange(len(live))))
        except OutOfBlocks:
            s.sequences.free_sequence(live.pop())
        if len(live) > 12:
            s.sequences.free_sequence(live.pop(0))
    held = [page for t in s.sequences.sequences.values() for page in t.logical_to_physical.values()]
    assert [page.ref_count for page in s.manager.pages] == [held.count(page) for page in range(24)]
    for seq_id in live:
        s.sequences.free_sequence(seq_id)
    assert s.manager.free_pages == list(range(24))
    s.manager.pool.check()


def test_a_dropped_sequence_manager_gives_its_pages_back(s):
    s.fill("a", 9)
    s.sequences = None
    gc.collect()
    assert s.manager.free_pages == list(range(8))
