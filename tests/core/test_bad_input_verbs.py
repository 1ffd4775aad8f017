"""Bad input to reorder, depths, accepted, swaps, pins and keys, as test_bad_input.py does for the rest."""

import numpy as np
import pytest
from drive import prefill, snapshot
from test_bad_input import FORMS, NO_INTEGERS, REFUSED

from pagedcache.errors import InvalidSequence

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared


@pytest.fixture
def world(make):
    """A table, a row of six tokens, and one that is swapped out."""
    table = make(steps_in_flight=2, events="tokens")
    away = prefill(table, [1] * 6)
    table.swap_out([away])
    return table, prefill(table, range(6)), away


@pytest.mark.parametrize("form", FORMS)
def test_any_integer_sequence_will_do(make, form):
    table, convert = make(), FORMS[form]
    ids = [prefill(table, [10 * k + i for i in range(6)]) for k in range(2)]
    table.reorder(convert(ids), convert([1, 0]))
    step = table.extend(convert(ids), convert([3, 2]), depths=convert([0, 1, 1, 0, 0]))
    assert step.positions.tolist() == [6, 7, 7, 6, 6]
    src, _ = step.moves([convert([0, 2]), convert([1])])
    assert len(src) == 2
    table.check_commit(step, convert([1, 2, 3, 4, 5]), [convert([0, 2]), convert([1])])
    table.commit(step, convert([1, 2, 3, 4, 5]), [convert([0, 2]), convert([1])])
    assert table.match([[10, 11, 12, 13, 14, 15, 1, 3, 0]])[0] == 8
    assert table.swap_list(convert(ids))[1].tolist() == [0, 2, 4]
    table.swap_out(convert(ids))
    assert len(table.swap_in(convert(ids))) == 4
    assert table.pin([convert([10, 11, 12, 13])], "x") == 1


def wrong_ids(table, live, away, bad):
    yield lambda: table.reorder(bad, [0])
    yield lambda: table.reorder([live], bad)
    yield lambda: table.swap_out(bad)
    yield lambda: table.swap_list(bad)
    yield lambda: table.swap_in(bad)
    yield lambda: table.extend([live], 1, depths=bad)
    yield lambda: table.can_extend([live], 1, depths=bad)
    yield lambda: table.pin([bad], "x")


@pytest.mark.parametrize("bad", [b for b in NO_INTEGERS if b != "none"])
def test_what_is_no_integer_is_refused_and_changes_nothing(world, bad):
    table, live, away = world
    before = snapshot(table, live)
    for call in wrong_ids(table, live, away, NO_INTEGERS[bad]):
        with pytest.raises(REFUSED):
            call()
        assert snapshot(table, live) == before and table.stats().swapped == 2 and table.num_pinned == 0
    step = table.extend([live], 1)
    for call in (table.commit, table.check_commit):
        with pytest.raises(REFUSED):
            call(step, [1], [NO_INTEGERS[bad]])
    with pytest.raises(REFUSED):
        step.moves([NO_INTEGERS[bad]])
    assert not step.closed
    table.abandon(step)


@pytest.mark.parametrize("verb", ["reorder", "swap_out", "swap_list", "swap_in"])
def test_handles_that_name_no_row(world, verb):
    table, live, away = world
    first = away if verb == "swap_in" else live
    before = snapshot(table, live)
    for handle in (-1, first + (1 << 32), first - (1 << 32), 2**62, -(2**63), first + 10**6):
        with pytest.raises(InvalidSequence, match=str(handle)):
            getattr(table, verb)([first, handle], *([[0, 0]] if verb == "reorder" else []))
    for again in ([first] * 2, [first] * 5000):
        with pytest.raises(ValueError, match=f"{first}.*twice"):
            getattr(table, verb)(again, *([[0] * len(again)] if verb == "reorder" else []))
    assert snapshot(table, live) == before and table.stats().swapped == 2


@pytest.mark.parametrize("verb", ["reorder", "swap_out", "swap_list", "swap_in"])
def test_more_ids_than_rows(make, verb):
    table = make(max_sequences=2)
    ids = table.admit([[1, 2], [3]]).ids.tolist()
    if verb == "swap_in":
        table.swap_out(ids)
    more = [*ids, ids[0] + (1 << 32)]
    with pytest.raises(InvalidSequence):
        getattr(table, verb)(more, *([[0] * 3] if verb == "reorder" else []))
    assert table.stats().swapped == (2 if verb == "swap_in" else 0)


@pytest.mark.parametrize("verb", ["reset", "compaction", "events"])
def test_verbs_without_arguments_take_none(world, verb):
    table, live, _ = world
    before = snapshot(table, live)
    with pytest.raises(TypeError):
        getattr(table, verb)(1)
    assert snapshot(table, live) == before


@pytest.mark.parametrize("copied", [[(1, 2)], [[5, 9], [6, 10]], np.zeros((0, 2), np.int32)])
def test_compact_of_other_pairs_than_it_would_move_does_nothing(world, copied):
    table, live, _ = world
    before = snapshot(table, live)
    assert table.compact(copied) == (-1 if len(copied) != len(table.compaction()) or len(copied) else 0)
    assert snapshot(table, live) == before
    with pytest.raises(TypeError):
        table.compact("pairs")


def test_invalidate_must_be_told_what(world):
    """Forgetting everybody's blocks for want of an argument would be a costly slip."""
    table, live, _ = world
    before = snapshot(table, live)
    for arguments in ((), (None,), ("a",)):
        with pytest.raises(TypeError):
            table.invalidate(*arguments)
    assert snapshot(table, live) == before


@pytest.mark.parametrize("bad", [-1, 1, 2**31, 2**64, 1.0, "1", None, True])
def test_a_priority_is_one_that_the_policy_has(world, bad):
    """LRU has priority 0 alone."""
    table, live, _ = world
    before = snapshot(table, live)
    with pytest.raises((ValueError, TypeError), match="priority"):
        table.admit([[1, 2]], priority=bad)
    assert snapshot(table, live) == before


def test_a_cascade_is_a_matter_of_truth(world):
    table, live, _ = world

    class Undecided:
        def __bool__(self):
            raise ZeroDivisionError

    before = snapshot(table, live)
    with pytest.raises(ZeroDivisionError):
        table.extend([live], 1, cascade=Undecided())
    assert snapshot(table, live) == before and table.open_steps == ()
    step = table.extend([live], 1, cascade=np.True_)
    assert step.shared_prefixes is not None
    table.abandon(step)
