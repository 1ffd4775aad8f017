"""Kernels on torch's OpenMP threads: the same results, bit for bit, as on their own, or on one; and after a fork."""

import os

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from pagedcache import CacheSpec, KVCache
from pagedcache.interop.transformers._threads import borrow_threads


def attended(threads):
    """Attention of two sequences of 600 tokens, in a cache whose calls take so many threads."""
    rng = np.random.default_rng(5)
    k, v = (rng.standard_normal((1200, 4, 32), np.float32) for _ in range(2))
    q = rng.standard_normal((1200, 8, 32), np.float32)
    with KVCache(CacheSpec(1, 4, 32), num_blocks=80, threads=threads) as cache:
        step = cache.extend(cache.admit([[], []]).ids, 600)
        return cache.attend(0, q, k, v, step)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_results_do_not_depend_on_whose_threads_work(threads):
    if not borrow_threads():
        pytest.skip("torch has not GNU's OpenMP")
    assert np.array_equal(attended(threads), attended(1))


@pytest.mark.thread_unsafe
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    expected = attended(2)
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(attended(2), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
