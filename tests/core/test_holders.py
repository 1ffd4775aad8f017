"""Who else holds a block, and who lets go first: small forms of what the state machine found. DESIGN 3, 4.10, 4.17."""

import pytest
from drive import blocks_of, prefill

from pagedcache.keys import Namespace, content


@pytest.mark.parametrize("counts", [(1, 2), (2, 1)])
@pytest.mark.parametrize("close", ["commit", "abandon"])
def test_tokens_are_known_of_the_block_that_the_row_goes_on_with(make, counts, close):
    """Two open steps: a copies in the first, b writes in place in the block that this step holds."""
    table = make(steps_in_flight=2)
    a = prefill(table, [9])
    b = int(table.fork([a])[0, 0])
    first = table.extend([a, b], [1, counts[0]])
    second = table.extend([b], [counts[1]])
    table.commit(first, [1, *[2, 3, 4][: counts[0]]])
    if close == "commit":
        table.commit(second, [2, 3, 4][counts[0] :])
    else:
        table.abandon(second)
        table.commit(table.extend([b], [counts[1]]), [2, 3, 4][counts[0] :])
    assert table.match([[9, 2, 3, 4, 0], [9, 0, 3, 4, 0]]).tolist() == [4, 1]


def test_a_block_that_waits_for_a_fence_is_swapped_out_with_its_parent(make):
    table = make(block_size=1)
    table.cover(1)
    first = prefill(table, [1, 2])
    other = int(table.fork([first], at=1)[0, 0])
    table.release([first])  # the block of 2 waits
    found = prefill(table, [1, 2, 3])
    table.truncate([found], [2])
    table.cover(2)
    table.release([other])
    assert table.swap_list([found])[0].tolist() == blocks_of(table, found)
    table.swap_out([found])
    table.retire(2)
    table.check()


@pytest.mark.parametrize("verb", ["fork", "reorder"])
def test_what_was_swapped_in_is_shared_as_published(make, verb):
    """Or one sharer publishes a block under a parent that the other does not hold."""
    table = make(block_size=1)
    a, b = prefill(table, [1, 2]), prefill(table, [5])
    table.swap_out([a])
    table.evict(16)
    table.swap_in([a])
    if verb == "fork":
        table.fork([a])
    else:
        table.reorder([a, b], [0, 0])
    other = prefill(table, [1])
    table.commit(table.extend([a], [1]), [3])
    table.release([other, a])
    table.check()


def test_a_namespace_is_no_other_key_of_the_same_bytes(make):
    """In namespace a an image begins in the second block, as one does in the first block of the default namespace."""
    table = make(block_size=2)
    ours = Namespace("a", secret=b"at least 16 bytes")
    prefill(table, [1, 1, 2, 2, 3], namespace=ours, keys=[[content("cat", 2, 4)]])
    later, keys = [[2, 2, 3]], [[content("cat", 0, 2)]]
    prefill(table, *later, keys=keys)
    assert table.invalidate(namespace=ours) == 2
    assert table.match(later, keys=keys).tolist() == [2]
    assert table.invalidate(namespace=None) == 1
    assert table.match(later, keys=keys).tolist() == [0]


def test_a_tree_is_not_committed_whole(make):
    table = make(block_size=2)
    a = prefill(table, [7])
    step = table.extend([a], [2], depths=[0, 0])
    with pytest.raises(ValueError, match="accepted"):
        table.commit(step, [1, 2])
    table.commit(step, [1, 2], [[1]])
    assert table.match([[7, 2, 0]]).tolist() == [2]


def test_the_audit_knows_of_fences(make):
    table = make()
    a = prefill(table, [9])
    table.cover(1)
    table.release([a])
    table.check()
    assert table.stats().waiting == 1


def test_the_source_of_a_copy_goes_before_the_blocks_that_it_continues(make):
    table = make(num_blocks=4, block_size=2)
    a = prefill(table, [1, 1, 1, 1])
    table.truncate([a], [3])
    step = table.extend([a], [1])  # copies the published second block
    table.release([a])
    table.commit(step, [2])
    table.check()
