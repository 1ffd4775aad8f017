"""Verbs and arguments whose work comes in a later release: final signatures that say so and change nothing."""

import numpy as np
import pytest
from drive import prefill, snapshot


@pytest.fixture
def world(make):
    """A table with one row of six tokens, and its handle."""
    table = make()
    return table, prefill(table, range(6))


LATER = {
    "reorder": lambda t, s: t.reorder([s], [0]),
    "retire": lambda t, s: t.retire(0),
    "swap_out": lambda t, s: t.swap_out([s]),
    "swap_in": lambda t, s: t.swap_in([s]),
    "pin": lambda t, s: t.pin([[1, 2]], "system"),
    "unpin": lambda t, s: t.unpin("system"),
    "evict": lambda t, s: t.evict(1),
    "reset": lambda t, s: t.reset(),
    "invalidate": lambda t, s: t.invalidate(namespace="a"),
    "compact": lambda t, s: t.compact(),
    "events": lambda t, s: t.events(),
    "extend depths": lambda t, s: t.extend([s], 1, depths=[0]),
    "extend cascade": lambda t, s: t.extend([s], 1, cascade=True),
    "can_extend depths": lambda t, s: t.can_extend([s], 1, depths=[0]),
    "admit namespace": lambda t, s: t.admit([[1]], namespace="a"),
    "admit keys": lambda t, s: t.admit([[1]], keys=[None]),
    "match namespace": lambda t, s: t.match([[1]], namespace="a"),
    "match keys": lambda t, s: t.match([[1]], keys=[None]),
}


@pytest.mark.parametrize("verb", LATER)
def test_verbs_that_come_later_say_so_and_change_nothing(world, verb):
    table, sid = world
    before = snapshot(table, sid)
    with pytest.raises(NotImplementedError):
        LATER[verb](table, sid)
    assert snapshot(table, sid) == before


def test_commit_of_accepted_tokens_comes_later(world):
    table, sid = world
    step = table.extend([sid], 1)
    with pytest.raises(NotImplementedError):
        table.commit(step, [1], accepted=[np.array([0])])
    assert not step.closed
    table.abandon(step)
