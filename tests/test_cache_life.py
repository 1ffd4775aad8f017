"""A KVCache from its construction to its end: budgets, closing, copies, processes and threads."""

import copy
import gc
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
from kv_drive import make_cache

from pagedcache import CacheClosed, CacheSpec, KVCache, ViewsOutstanding


def test_a_forked_child_is_not_locked_out():
    """Contract 13: even where another thread was inside a call at the fork."""
    with make_cache() as cache:
        held, done = threading.Event(), threading.Event()

        def hold():
            with cache._lock:
                held.set()
                done.wait(10)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(10)
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(0 if cache.admit([[1, 2, 3]]).status[0] == 0 else 1)
        done.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0


def test_bounds_of_the_constructor():
    spec = CacheSpec(layers=1, kv_heads=1, head_dim=4)
    with pytest.raises(ValueError, match=r"memory= .* or num_blocks="):
        KVCache(spec)
    with pytest.raises(ValueError, match="not both"):
        KVCache(spec, memory="1 MiB", num_blocks=4)
    with pytest.raises(ValueError, match="0"):
        KVCache(spec, num_blocks=0)
    with pytest.raises(ValueError, match="steps_in_flight is 9"):
        KVCache(spec, num_blocks=4, steps_in_flight=9)
    with pytest.raises(TypeError, match="CacheSpec"):
        KVCache({"layers": 1}, num_blocks=4)


def test_a_budget_is_never_exceeded_and_fully_used():
    """M10: the planner, the pool and the arrays agree to the byte."""
    spec = CacheSpec(layers=3, kv_heads=2, head_dim=80, v_head_dim=64, block_size=7)
    with KVCache(spec, memory=1_000_000) as cache:
        exported = cache.storage.export()
        assert sum(array.nbytes for plane in exported for array in plane) == spec.pool_nbytes(cache.num_blocks)
        del exported
        assert spec.pool_nbytes(cache.num_blocks) <= 1_000_000 < spec.pool_nbytes(cache.num_blocks + 1)


def test_close_refuses_while_views_are_out_and_then_everything_is_refused():
    """C07, contract 11."""
    cache = make_cache()
    view = cache.storage.view(0)[0]
    with pytest.raises(ViewsOutstanding):
        cache.close()
    assert cache.admit([[1]]).status[0] == 0
    del view
    gc.collect()
    cache.close()
    cache.close()
    with pytest.raises(CacheClosed):
        cache.admit([[1]])
    assert repr(cache) == "KVCache(closed)"


def test_an_exception_in_a_with_block_is_not_replaced():  # C13
    def fail(cache):
        _view = cache.storage.view(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), make_cache() as cache:
        fail(cache)


def test_copying_is_refused_with_the_way_to_go():
    """C08."""
    with make_cache() as cache:
        for how in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="fork"):
                how(cache)


def test_threads_serialise():
    """Contract 12: verbs, attention and the audit from several threads at once."""
    with make_cache(num_blocks=64) as cache:
        failures = []

        def work(seed):
            rng = np.random.default_rng(seed)
            try:
                for _ in range(60):
                    admission = cache.admit([rng.integers(0, 3, rng.integers(1, 12))])
                    if admission.status[0]:
                        continue
                    cache.match([[0, 1, 2, 0, 1]])
                    kids = cache.fork(admission.ids, 2)[0]
                    cache.release(kids)
                    cache.check()
                    cache.release(admission.ids)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures and cache.stats().sequences == 0
        cache.check()


def test_a_verb_that_waits_while_the_cache_is_closed_is_refused():
    cache, outcome = make_cache(), []

    def late():
        try:
            outcome.append(cache.admit([[1, 2, 3]]))
        except CacheClosed as error:
            outcome.append(error)

    with cache._lock:
        thread = threading.Thread(target=late)
        thread.start()
        time.sleep(0.1)  # so that it waits for the lock
        cache.close()
    thread.join()
    assert isinstance(outcome[0], CacheClosed)
