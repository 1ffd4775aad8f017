"""Faults of asynchronous work, on a CPU: backend "delayed" does everything only when it is told to."""

import numpy as np
from token_cache import TokenCache

from pagedcache.testing import DelayedBackend


def test_c04_a_block_is_not_handed_out_while_submitted_work_reads_it(make):
    backend = DelayedBackend()
    told = make(num_blocks=4, backend=backend)
    a = told.prompt([1, 2, 3, 4, 5, 6, 7, 8])
    blocks = set(told.cache.sequence(a).block_table.tolist())
    saved = backend.read_blocks(told.cache.storage, sorted(blocks))  # the queued copy to another tier
    told.cache.cover(backend.fence())
    assert told.cache.release([a]) == 0
    assert told.cache.stats().free == 2
    b = told.prompt([11, 12, 13, 14, 15, 16, 17, 18])
    assert blocks.isdisjoint(told.cache.sequence(b).block_table.tolist())
    assert told.cache.synchronize() == 2
    assert saved.reshape(2, -1)[:, :16].view(np.float32).reshape(-1).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_c05_two_queued_steps_read_each_its_own_table(make):
    """Arrays of the host are read when the work is done, as from pinned memory."""
    told = make(backend=DelayedBackend(late_arguments=True), steps_in_flight=2)
    outs, steps = [], []
    for sid, token in zip(told.cache.admit([[], []]).ids.tolist(), (5, 9), strict=True):
        steps.append(told.write({sid: [token]}))
        outs.append(told.out)
    assert np.isnan(outs).all(), "nothing is done yet"
    told.cache.synchronize()
    assert [float(out[0, 0, 0]) for out in outs] == [-5, -9]
    for step in steps:
        told.cache.commit(step, None)


def test_m08_blocks_of_an_aborted_fill_come_back_once(make):
    told = make(num_blocks=4, backend=DelayedBackend())
    (sid,) = told.cache.admit([[1] * 12]).ids.tolist()
    step = told.write({sid: [1] * 12})
    assert told.cache.release([sid]) == 0, "aborted while it is being filled"
    told.cache.abandon(step)
    assert told.cache.stats().sequences == 0 and told.cache.stats().free == 1
    assert told.cache.synchronize() == 3
    assert told.cache.stats().free == 4
    assert told.cache.synchronize() == 0
    assert len(set(told.cache.pool.allocate(4).tolist())) == 4


def test_m08_a_fill_that_never_ends_does_not_keep_the_cache_from_closing():
    backend = DelayedBackend()
    told = TokenCache(num_blocks=4, backend=backend)
    with told.cache:
        (sid,) = told.cache.admit([[1] * 12]).ids.tolist()
        told.write({sid: [1] * 12})
    assert backend.pending == 0
