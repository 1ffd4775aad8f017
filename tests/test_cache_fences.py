"""KVCache over a backend that works asynchronously: when fences are taken and retired. DESIGN 3, 4.14."""

import numpy as np
import pytest
from kv_drive import DIM, HEADS, Rows, make_cache

from pagedcache import OutOfBlocks, Step
from pagedcache.testing import DelayedBackend


@pytest.fixture
def rows():
    with make_cache(num_blocks=8, backend=DelayedBackend()) as cache:
        yield Rows(cache)
        cache.synchronize()
        cache.check()


def test_two_steps_may_be_open_where_work_is_asynchronous(rows):
    assert rows.cache.sequences.steps_in_flight == 2
    with make_cache() as cache:
        assert cache.sequences.steps_in_flight == 1


def test_blocks_are_not_reused_before_the_work_on_them_is_done(rows):
    a = rows.admit(list(range(9)))
    assert rows.cache.release([a]) == 0
    assert rows.cache.stats().waiting == 3 and rows.cache.stats().free == 5
    assert rows.cache.admit([[7] * 24]).status[0] == 1
    assert rows.cache.synchronize() == 3 and rows.cache.backend.pending == 0
    assert rows.cache.admit([[7] * 32]).status[0] == 0


def test_an_error_says_that_blocks_wait(rows):
    a, b = rows.admit(list(range(9))), rows.admit([50])
    rows.release(a)
    assert not rows.cache.can_extend([b], 20)
    with pytest.raises(OutOfBlocks, match="3 wait for a fence"):
        rows.cache.extend([b], 20)
    rows.cache.synchronize()
    rows.cache.abandon(rows.cache.extend([b], 20))


@pytest.mark.parametrize("close", ["commit", "abandon"])
def test_a_step_takes_its_fence_when_it_is_closed(rows, close):
    a = rows.admit([1, 2, 3])
    rows.cache.synchronize()
    assert rows.cache.release([rows.admit([])]) == 0
    step = rows.cache.extend([a], 6)
    rows.write(step, [4] * 6)
    if close == "commit":
        rows.cache.commit(step, [4] * 6)
        rows.cache.truncate([a], 3)
    else:
        rows.cache.abandon(step)
    assert rows.cache.stats().waiting == 2
    assert rows.cache.retire(rows.cache.backend.fence() - 1) == 0
    assert rows.cache.retire(rows.cache.backend.fence()) == 2
    rows.cache.truncate([a], 3)


def test_a_prefix_is_found_while_its_blocks_wait(rows):
    rows.release(rows.admit(list(range(9))))
    b = rows.admit([*range(8), 80])
    assert rows.cache.stats().hit_tokens == 8
    assert rows.cache.synchronize() == 1
    rows.verify(b)


def test_a_synchronous_backend_never_waits():
    with make_cache() as cache:
        rows = Rows(cache)
        assert cache.release([rows.admit([1, 2, 3, 4, 5])]) == 2
        assert cache.synchronize() == 0 and cache.stats().waiting == 0


def test_metadata_only_leaves_fences_to_the_caller():
    with make_cache(storage="metadata") as cache:
        cache.cover(4)
        [sid] = cache.admit([[1] * 5]).ids
        cache.commit(cache.extend([sid], 5), [1] * 5)
        assert cache.release([sid]) == 0 and cache.stats().waiting == 2
        assert cache.retire(4) == 2


def test_compact_waits_for_its_copies():
    with make_cache(num_blocks=49, backend=DelayedBackend()) as cache:
        rows = Rows(cache)
        filler = cache.pool.allocate(49)
        cache.pool.decref(filler[(filler % 2 == 0) & (filler >= 4) & (filler < 36)])
        a = rows.admit(list(range(31)))
        cache.pool.decref(filler[(filler % 2 == 1) | (filler < 4) | (filler >= 36)])
        cache.synchronize()
        moved = cache.compact()
        assert moved > 0 and cache.stats().waiting == moved
        rows.run({a: [40]})
        assert cache.synchronize() == moved
        rows.verify()


def test_what_was_swapped_out_comes_back_however_late_the_work_is_done(rows):
    a = rows.admit(list(range(11)))
    rows.cache.swap_out([a])
    rows.cache.swap_in([a])
    rows.cache.synchronize()
    rows.verify(a)


def work_is_pending_unless_blocks_wait(cache, blocks):
    """Contract 14: nothing that is still read or written is handed out."""
    return cache.backend.pending == 0 or cache.stats().waiting == blocks


@pytest.mark.parametrize("verb", ["swap_out", "swap_in and release", "a copy that fails late"])
def test_blocks_of_swaps_and_of_failed_copies_wait_for_their_work(rows, verb):
    a = rows.admit(list(range(11)))
    rows.cache.synchronize()
    if verb == "swap_out":
        rows.cache.swap_out([a])
        assert work_is_pending_unless_blocks_wait(rows.cache, 3)
    elif verb == "swap_in and release":
        rows.cache.swap_out([a])
        rows.cache.synchronize()
        rows.cache.swap_in([a])
        rows.release(a)
        assert work_is_pending_unless_blocks_wait(rows.cache, 3)
    else:
        rows.fork(a)
        backend = rows.cache.backend
        submit = backend.copy_blocks

        def copy_blocks(*args):
            submit(*args)
            raise MemoryError("late")

        backend.copy_blocks = copy_blocks
        with pytest.raises(MemoryError, match="late"):
            rows.cache.extend([a], 1)
        del backend.copy_blocks
        assert work_is_pending_unless_blocks_wait(rows.cache, 1)
    rows.cache.synchronize()


def test_accepted_tokens_and_copies_in_the_order_of_the_calls(rows):
    a = rows.admit(list(range(6)))
    kid = rows.fork(a)
    step = rows.cache.extend([a], 3, depths=[0, 0, 1])
    rows.write(step, [100, 101, 102])
    rows.cache.commit(step, [100, 101, 102], [[1, 2]])
    rows.tokens[a] += [101, 102]
    rows.run({kid: [200, 201, 202]})
    rows.run({a: [5] * 4, kid: [6] * 3})
    rows.cache.synchronize()
    rows.verify()


def test_two_steps_in_flight_and_beams(rows):
    ids = [rows.admit([1, 2, 3, 4, 5]), rows.admit([11, 12])]
    old = rows.cache.extend(ids, 1)
    rows.write(old, [20, 21])
    new = rows.cache.extend(ids, 1)
    rows.write(new, [30, 31])
    rows.cache.commit(old, [20, 21])
    rows.cache.commit(new, [30, 31])
    rows.tokens = {ids[0]: [11, 12, 21, 31], ids[1]: [11, 12, 21, 31]}
    rows.cache.reorder(ids, [1, 1])
    rows.run({ids[0]: [40], ids[1]: [41]})
    assert rows.cache.synchronize() > 0
    rows.verify()


def test_reading_through_a_step_of_ones_own_holds_blocks_too(rows):
    a = rows.admit(list(range(1, 12)))
    rows.cache.synchronize()
    step = rows.cache.extend([a], [0])
    look = Step.from_arrays(step.block_tables.copy(), [11], [0, 1], block_size=4)
    rows.cache.abandon(step)
    rows.cache.synchronize()
    rows.cache.attend(0, np.ones((1, HEADS, DIM), np.float32), None, None, look)
    assert rows.cache.release([a]) == 0 and rows.cache.stats().waiting == 3
