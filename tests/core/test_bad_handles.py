"""Handles that name no row, a row of another table, or a row twice are refused by name; nothing changes (I13, W39)."""

import pytest
from drive import prefill, snapshot

from pagedcache.errors import InvalidSequence


@pytest.fixture
def world(make):
    """A table with one row of six tokens, and its handle."""
    table = make()
    return table, prefill(table, range(6))


@pytest.mark.thread_unsafe  # its arguments are shared
@pytest.mark.parametrize("verb", ["extend", "can_extend"])
def test_duplicate_ids_are_refused_by_name(world, verb):
    table, sid = world
    other = prefill(table, [1])
    before = snapshot(table, sid, other)
    with pytest.raises(ValueError, match=str(sid)):
        getattr(table, verb)([sid, other, sid], 1)
    assert snapshot(table, sid, other) == before


def test_truncate_refuses_duplicates(world):
    table, sid = world
    before = snapshot(table, sid)
    with pytest.raises(ValueError, match=str(sid)):
        table.truncate([sid, sid], [4, 2])
    assert snapshot(table, sid) == before


@pytest.mark.parametrize(
    "bad", ["-1", "row", "row+1", "next generation", "last generation", "2**62", "-2**63", "far row"]
)
@pytest.mark.parametrize("verb", ["extend", "can_extend", "fork", "truncate", "release"])
def test_i13_w39_handles_that_name_no_row(world, verb, bad):
    table, sid = world
    handle = {
        "-1": -1,
        "row": sid & 0xFFFFFFFF,
        "row+1": sid + 1,
        "next generation": sid + (1 << 32),
        "last generation": sid - (1 << 32),
        "2**62": 2**62,
        "-2**63": -(2**63),
        "far row": sid + 10**6,
    }[bad]
    if handle == sid:
        pytest.skip("this table's first generation is 0")
    before = snapshot(table, sid)
    more = {"extend": ([1, 1],), "can_extend": ([1, 1],), "truncate": ([1, 1],)}.get(verb, ())
    with pytest.raises(InvalidSequence, match=str(handle)):
        getattr(table, verb)([sid, handle], *more)
    assert snapshot(table, sid) == before


@pytest.mark.parametrize("verb", ["extend", "fork", "truncate", "release"])
def test_a_handle_of_another_table_is_refused(make, verb):
    """DESIGN 4.8: a foreign id raises. Rows of both tables are live, so the generations alone must tell."""
    one, two = make(), make()
    a, b = prefill(one, [1] * 5), prefill(two, [2] * 5)
    before = snapshot(two, b)
    with pytest.raises(InvalidSequence):
        getattr(two, verb)([a], *([[1]] if verb in ("extend", "truncate") else []))
    assert snapshot(two, b) == before


@pytest.mark.parametrize("verb", ["extend", "can_extend", "fork", "truncate", "release"])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_more_ids_than_rows(make, verb, rows):
    """One more than there can be, the last one stale or twice; thousands more."""
    table = make(max_sequences=rows)
    stale = prefill(table, [1])
    table.release([stale])
    ids = table.admit([[1]] * rows).ids.tolist()
    before = snapshot(table, *ids)
    for more in ([stale], [ids[0]], [-1], [stale] * 5000, ids * 1000):
        arguments = ([0] * (rows + len(more)),) if verb in ("extend", "can_extend", "truncate") else ()
        with pytest.raises((InvalidSequence, ValueError)):
            getattr(table, verb)(ids + more, *arguments)
    assert snapshot(table, *ids) == before
