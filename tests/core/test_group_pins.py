"""pin on tables with layer groups: what a hit of the pinned prompt needs stays, in each group."""

import pytest
from drive import feed

from pagedcache.core import BlockPool, SequenceTable


@pytest.mark.parametrize("side", [(3, 0, False), (5, 2, False), (4, 0, True), (None, 0, False)])
@pytest.mark.parametrize("length", [8, 9, 12, 13, 15])
def test_a_pinned_prompt_is_found_whole_whatever_else_goes(side, length):
    table = SequenceTable(BlockPool(64), 4, side_groups=[side], max_step_tokens=16)
    prompt = list(range(length))
    ids = table.admit([prompt]).ids
    feed(table, ids, [prompt])
    for token in range(3):
        feed(table, ids, [[token]])
    table.release(ids)
    table.pin([prompt], "system")
    [before] = table.match([prompt])
    assert before >= (length - 1) // 4 * 4
    table.evict(64)
    assert table.match([prompt])[0] == (before if length % 4 == 0 else before // 4 * 4)
    assert table.match([[*prompt, 99]])[0] >= length // 4 * 4
    table.check()
    table.unpin("system")
    table.check()
