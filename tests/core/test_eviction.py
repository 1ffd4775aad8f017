"""What the prefix cache keeps and what it gives up first. DESIGN 4.9, 4.10 and section 5."""

import pytest
from drive import prefill


def length(table, prompt):
    return int(table.match([prompt])[0])


@pytest.mark.parametrize("verb", ["truncate", "abandon", "release"])
def test_only_eviction_unpublishes(make, verb):
    """Contract 9."""
    table = make()
    sid = prefill(table, range(9))
    if verb == "truncate":
        table.truncate([sid], [0])
    elif verb == "abandon":
        table.abandon(table.extend([sid], 3))
    else:
        table.release([sid])
    assert length(table, range(9)) == 8


def test_released_blocks_stay_until_memory_is_wanted(make):
    table = make(num_blocks=8)
    table.release([prefill(table, range(8))])
    assert (table.stats().free, table.stats().cached) == (8, 2)
    table.admit([[1] * 24])
    assert length(table, range(9)) == 8
    table.admit([[1]])
    assert length(table, range(9)) == 4  # tail first
    table.admit([[1]])
    assert length(table, range(9)) == 0


def test_the_longest_idle_chain_goes_first(make):
    table = make(num_blocks=6)
    for token in (1, 2, 3):
        table.release([prefill(table, [token] * 8)])
    table.admit([[9] * 8])
    assert [length(table, [t] * 9) for t in (1, 2, 3)] == [0, 8, 8]
    table.admit([[9] * 4])
    assert [length(table, [t] * 9) for t in (1, 2, 3)] == [0, 4, 8]


def test_a_hit_makes_a_chain_young_again(make):
    table = make(num_blocks=6)
    for token in (1, 2):
        table.release([prefill(table, [token] * 8)])
    table.release(table.admit([[1] * 9]).ids)
    table.admit([[9] * 16])
    assert [length(table, [t] * 9) for t in (1, 2)] == [8, 0]


def test_a_shared_prefix_outlives_its_branches(make):
    """Contract 10: what is kept stays reachable, whatever the release order."""
    table = make(num_blocks=6)
    trunk = prefill(table, range(8))
    left, right = prefill(table, [*range(8), *[50] * 4]), prefill(table, [*range(8), *[60] * 4])
    table.release([trunk, right, left])
    seen = []
    for _ in range(6):
        assert table.admit([[1]]).status[0] == 0
        seen.append([length(table, [*range(8), *[t] * 5]) for t in (50, 60)])
    assert seen[1] == [12, 12] and sorted(seen[2]) == [8, 12] and seen[3] == [8, 8] and seen[5] == [0, 0]


def test_a_live_descendant_protects_its_ancestors(make):
    table = make(num_blocks=4)
    a = prefill(table, range(4))
    b = prefill(table, range(8))
    table.release([a])
    table.admit([[9] * 8])
    assert length(table, range(9)) == 8
    assert table.admit([[7]]).status[0] == 1
    table.release([b])


def test_evicted_content_can_be_published_again(make):
    table = make(num_blocks=3)
    for _ in range(3):
        table.release([prefill(table, [1] * 12)])
        assert length(table, [1] * 12) == 8
        table.release([prefill(table, [2] * 12)])
        assert length(table, [1] * 9) == 0
