"""Faults of speed, as counts: calls, objects and bytes. There is no clock in here."""

import ast
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import pagedcache
from pagedcache import CacheSpec, KVCache
from pagedcache.core import BlockPool
from pagedcache.testing import DelayedBackend


def calls_of(work):
    """Calls that Python makes while it works, of its own functions and of C's."""
    count = 0

    def count_call(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def bytes_of(work):
    """Most bytes that Python and NumPy take while it works."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_s01_blocks_cost_the_same_in_a_small_and_in_a_large_pool():
    """Calls do not grow with the blocks asked for, nor objects with the pool."""
    costs = {}
    for size in (1_000, 1_000_000):
        pool = BlockPool(size)
        pool.decref(pool.allocate(10))  # whatever is made at the first call
        for n in (10, 1_000):

            def work(pool=pool, n=n):
                pool.decref(pool.allocate(n))

            costs[size, n] = calls_of(work), bytes_of(work)
    assert {calls for calls, _ in costs.values()} == {costs[1_000, 10][0]}
    assert costs[1_000, 1_000][1] == costs[1_000_000, 1_000][1] < 16 * 1_000


def test_s07_a_step_calls_python_equally_often_for_four_sequences_and_for_two_hundred():
    costs = []
    for rows in (4, 200):
        cache = KVCache(CacheSpec(1, 1, 1, block_size=4), num_blocks=1000, storage="metadata")
        ids = cache.admit([[n] * 6 for n in range(rows)]).ids
        cache.commit(cache.extend(ids, 6), np.ones(6 * rows, np.int32))
        tokens = np.ones(rows, np.int32)
        costs.append([calls_of(lambda c=cache, i=ids, t=tokens: c.commit(c.extend(i, 1), t)) for _ in range(4)])
        cache.close()
    assert costs[0] == costs[1]


def test_s07_nothing_on_the_way_of_a_step_logs():
    package = Path(pagedcache.__file__).parent
    paths = [*(package / "core").glob("*.py*"), *(package / "backends").rglob("*.py")]
    paths += [package / name for name in ("cache.py", "_bookkeeping.py", "sequence.py", "simple.py")]
    for path in paths:
        if path.suffix == ".py":
            modules = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Import)]
            assert "logging" not in [alias.name for module in modules for alias in module.names], path
        elif path.suffix in (".pyx", ".pxd"):
            assert "logging" not in path.read_text("utf-8"), path
    assert len(paths) > 20


@pytest.mark.parametrize(("length", "tails"), [(1_000, 3), (32_000, 4)])  # a full last block is published: all copy it
def test_s04_s05_truncate_fork_and_reorder_submit_no_work(length, tails):
    backend = DelayedBackend()
    cache = KVCache(CacheSpec(1, 1, 1, block_size=16), num_blocks=2100, backend=backend)
    ids = cache.admit([range(length)]).ids
    cache.commit(cache.extend(ids, length), range(length))
    cache.truncate(ids, length - 2)
    ids = np.concatenate([ids, cache.fork(ids, 3)[0]])
    cache.reorder(ids, [3, 2, 1, 0])
    assert backend.pending == 0
    cache.abandon(cache.extend(ids, 1))
    assert backend.submitted.blocks_copied == tails
    cache.close()
