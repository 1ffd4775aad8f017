"""release: every reference comes back once. DESIGN 3 and 4.8."""

import pytest
from drive import blocks_of, feed, prefill, snapshot

from pagedcache.errors import InvalidSequence


def test_returns_the_blocks_that_became_usable(make):
    table = make()
    a, b = prefill(table, [1] * 5), prefill(table, [2] * 9)
    assert table.release([a, b]) == 5 and table.stats().free == 16 and table.stats().sequences == 0


def test_release_of_nothing(make):
    assert make().release([]) == 0


def test_allotted_blocks_come_back_too(make):
    table = make()
    assert table.release(table.admit([[1] * 9], reserve=4).ids) == 4


def test_shared_blocks_come_back_with_their_last_holder(make):
    table = make()
    sid = prefill(table, [1] * 9)
    [[kid]] = table.fork([sid])
    feed(table, [kid], [[2]])
    assert table.release([sid]) == 1  # its own tail
    assert table.release([kid]) == 3


def test_both_holders_in_one_call(make):
    table = make()
    sid = prefill(table, [1] * 9)
    [[kid]] = table.fork([sid])
    assert table.release([sid, kid]) == 3


def test_m04_double_release_raises_and_names_the_handle(make):
    table = make()
    a, b = prefill(table, [1] * 5), prefill(table, [2] * 5)
    table.release([a])
    before = snapshot(table, b)
    with pytest.raises(InvalidSequence, match=str(a)):
        table.release([a])
    with pytest.raises(InvalidSequence, match=str(a)):
        table.release([b, a])
    assert snapshot(table, b) == before


def test_m04_one_handle_twice_in_a_call(make):
    table = make()
    a = prefill(table, [1] * 5)
    before = snapshot(table, a)
    with pytest.raises((ValueError, InvalidSequence), match=str(a)):
        table.release([a, a])
    assert snapshot(table, a) == before


def test_a_released_handle_is_dead_for_every_verb(make):
    table = make()
    sid = prefill(table, [1] * 5)
    table.release([sid])
    for call in (
        lambda: table.extend([sid], 1),
        lambda: table.can_extend([sid], 1),
        lambda: table.fork([sid]),
        lambda: table.truncate([sid], [0]),
        lambda: blocks_of(table, sid),
    ):
        with pytest.raises(InvalidSequence, match=str(sid)):
            call()


def test_unpublished_blocks_are_taken_before_cached_ones(make):
    """S12: a partial tail released together with full blocks is used first."""
    table = make(num_blocks=3)
    sid = prefill(table, [1] * 9)
    tail = blocks_of(table, sid)[2]
    table.release([sid])
    [other] = table.admit([[9]]).ids
    assert blocks_of(table, other) == [tail] and table.match([[1] * 9])[0] == 8


def test_m05_used_free_and_cached_always_add_up(make):
    table = make(num_blocks=8)
    sid = prefill(table, range(8))
    kids = table.fork([sid], 3)[0].tolist()
    stats = table.stats()
    assert (stats.used, stats.shared, stats.used + stats.free) == (2, 2, 8)
    for n, row in enumerate([sid, *kids]):
        assert table.release([row]) == (2 if n == 3 else 0)
        stats = table.stats()
        assert stats.used + stats.free == 8 and stats.cached <= stats.free
    assert stats.peak_used == 2


def test_rows_come_back(make):
    table = make(max_sequences=3)
    for _ in range(5):
        ids = table.admit([[1], [2], [3]]).ids
        assert (ids >= 0).all()
        table.release(ids)
