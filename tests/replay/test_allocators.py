"""Buddy and first fit: against a plain bitmap, in random walks."""

import numpy as np
import pytest

from pagedcache.replay.allocators import Buddy, FirstFit


def runs(free):
    """(start, length) of every run of free slots of a bitmap."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], free, [0]])))
    return list(zip(edges[::2].tolist(), (edges[1::2] - edges[::2]).tolist(), strict=True))


def walk(allocator, slots, seed, check, steps=600):
    """Allocate and release at random; `check` tells what a request should have got."""
    rng = np.random.default_rng(seed)
    free = np.ones(slots, np.int8)
    taken = {}
    for _ in range(steps):
        if taken and rng.random() < 0.45:
            start = int(rng.choice(list(taken)))
            free[start : start + taken.pop(start)] = 1
            allocator.release(start)
        else:
            size = int(rng.integers(1, slots // 3))
            expected = check(free, size)
            place = allocator.allocate(size)
            assert place == expected
            if place is not None:
                start, given = place
                assert given >= size
                assert free[start : start + given].all()
                free[start : start + given] = 0
                taken[start] = given
    for start in list(taken):
        allocator.release(start)
    return taken


def first_hole(free, size):
    return next(((start, size) for start, length in runs(free) if length >= size), None)


def aligned_range(trees):
    def check(free, size):
        """Of all free aligned ranges the one in the smallest free tree part, and of those the lowest."""
        want = 1 << (size - 1).bit_length()
        for span in (want << i for i in range(20)):
            for tree, length in trees:
                for start in range(tree, tree + length - span + 1, span):
                    whole = free[start : start + span].all()
                    twice = span < length and free[(start & -2 * span) : (start & -2 * span) + 2 * span].all()
                    if whole and not twice:
                        return start, want
        return None

    return check


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slots", [64, 100, 777])
def test_first_fit_walk(slots, seed):
    allocator = FirstFit(slots)
    walk(allocator, slots, seed, first_hole)
    assert allocator.allocate(slots) == (0, slots), "holes were not merged"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("slots", "trees"),
    [(64, [(0, 64)]), (100, [(0, 64), (64, 32), (96, 4)]), (77, [(0, 64), (64, 8), (72, 4), (76, 1)])],
)
def test_buddy_walk(slots, trees, seed):
    allocator = Buddy(slots)
    walk(allocator, slots, seed, aligned_range(trees))
    for start, length in trees:
        assert allocator.allocate(length) == (start, length), "halves were not merged"
    assert allocator.allocate(1) is None


def test_buddy_takes_the_smallest_range_that_will_do():
    memory = Buddy(24)
    assert memory.allocate(7) == (16, 8)
    assert memory.allocate(3) == (0, 4)
    assert memory.allocate(4) == (4, 4)
    assert memory.allocate(9) is None


def test_first_fit_leaves_holes():
    memory = FirstFit(10)
    assert [memory.allocate(3) for _ in range(3)] == [(0, 3), (3, 3), (6, 3)]
    memory.release(0)
    memory.release(6)
    assert memory.allocate(5) is None
    assert memory.allocate(4) == (6, 4)
