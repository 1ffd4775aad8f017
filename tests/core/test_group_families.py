"""Sequences that share blocks of several layer groups, freed in every order: everything comes back."""

from itertools import permutations

import pytest

from pagedcache.core import BlockPool, SequenceTable

SIDES = [(5, 0, False), (8, 3, False), (7, 0, True), (None, 0, False)]
PROMPT = list(range(22))


def grow(table, sid, tokens):
    for first in range(0, len(tokens), 6):
        new = tokens[first : first + 6]
        table.commit(table.extend([sid], [len(new)]), new)


@pytest.mark.parametrize("order", list(permutations(range(5))), ids=str)
@pytest.mark.parametrize("block_size", [1, 4])
def test_every_order(order, block_size):
    """A parent, two forks, one that found its prefix, and one that was rolled back and went on."""
    pool = BlockPool(300)
    table = SequenceTable(pool, block_size, max_sequences=8, side_groups=SIDES, max_step_tokens=6)
    [parent] = table.admit([PROMPT]).ids.tolist()
    grow(table, parent, PROMPT)
    [[one, two]] = table.fork([parent], 2).tolist()
    [sharer] = table.admit([[*PROMPT, 99]]).ids.tolist()
    [cut] = table.admit([[*PROMPT[:20], 98]]).ids.tolist()
    for sid, new in ((one, [50]), (sharer, [99]), (cut, [98, 97, 96])):
        position = table.position(sid)
        grow(table, sid, new if sid != cut else (PROMPT[:20] + new)[position:])
    table.truncate([cut], 23)
    grow(table, cut, [95] * 7)
    family = [parent, one, two, sharer, cut]
    for k in order:
        table.release([family[k]])
        table.check()
    stats = table.stats()
    assert (stats.used, stats.free, sum(stats.group_blocks)) == (0, 300, 0)
    table.reset()
    assert table.stats().cached == 0
    table.check()
