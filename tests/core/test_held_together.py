"""What must not come apart when somebody acts in the middle of a verb: a finalizer, the collector, the clock.

Finalizers stand for whatever runs at an allocation; each test makes one strike wherever it can.
"""

import contextlib
import gc
import subprocess
import sys
import time

import numpy as np
import pytest
from drive import prefill

from pagedcache.core import BlockPool, PriorityTTL, SequenceTable
from pagedcache.errors import StepBusy

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared


def striking(act, call, last=40):
    """Run `call` again and again, `act` at its first, second, ... allocation of a container."""
    for k in range(1, last):
        table, arguments = call[0]()
        seen = [0]

        def collected(phase, info, k=k, seen=seen, table=table, arguments=arguments):
            seen[0] += phase == "start"
            if seen[0] == k:
                act(table, *arguments)

        thresholds = gc.get_threshold()
        gc.collect()
        gc.callbacks.append(collected)
        gc.set_threshold(1, 1000, 1000)
        try:
            call[1](table, *arguments)
        finally:
            gc.callbacks.remove(collected)
            gc.set_threshold(*thresholds)
        table.check()


@pytest.mark.thread_unsafe  # it changes the collector
def test_counts_that_change_after_they_were_checked():
    def make():
        table = SequenceTable(BlockPool(64), 4, max_sequences=4)
        return table, (table.admit([[]], reserve=8).ids, np.array([1], np.int32))

    def spoil(table, ids, counts):
        counts[0] = -(2**30)

    def extend(table, ids, counts):
        try:
            step = table.extend(ids, counts)
        except ValueError as refused:
            error = str(refused)
        else:
            error = ""
            assert step.num_tokens == 1 and step.kv_lens.tolist() == [1]
            table.abandon(step)
        assert error in ("", "counts holds -1073741824 at 0; it must be 0 to 2147483647")

    striking(spoil, (make, extend))


@pytest.mark.thread_unsafe
def test_a_step_opened_while_another_extend_makes_room_keeps_its_arrays():
    opened = []

    def make():
        table = SequenceTable(BlockPool(64), 4, max_sequences=4)
        return table, table.admit([[], []], reserve=8).ids.tolist()

    def nested(table, a, b):
        try:
            step = table.extend([a], [1])
        except StepBusy:
            return
        opened[:] = [(step, step.slots.tolist(), step.block_tables.copy())]

    def extend(table, a, b):
        opened.clear()
        with contextlib.suppress(StepBusy):
            table.abandon(table.extend([b], [100]))
        for step, slots, tables in opened:
            if not step.closed:
                assert step.slots.tolist() == slots and np.array_equal(step.block_tables, tables)
                table.abandon(step)

    striking(nested, (make, extend))


@pytest.mark.thread_unsafe
def test_reset_while_a_finalizer_unpins():
    def make():
        table = SequenceTable(BlockPool(64), 4)
        prefill(table, range(9))
        for name in "abcd":
            table.pin([list(range(9))], name)
        return table, ()

    def unpin(table):
        with contextlib.suppress(KeyError):
            table.unpin("d")

    def reset(table):
        table.reset()
        assert table.num_pinned == 0 and table.stats().published == 0

    striking(unpin, (make, reset))


@pytest.mark.parametrize("how", ["swap_out", "commit"])
def test_blocks_are_idle_since_they_were_dropped_whatever_drops_them(how):
    table = SequenceTable(BlockPool(16, PriorityTTL([0.02, 0.02])), 4)
    high, low = prefill(table, [1] * 4, priority=1), prefill(table, [2] * 4)
    if how == "commit":  # the source of a copy
        table.truncate([high], [3])
        step = table.extend([high], 1)
    time.sleep(0.03)
    if how == "commit":
        table.commit(step, [9])
    else:
        table.swap_out([high])
    table.release([low])
    table.evict(1)
    assert table.match([[1] * 5, [2] * 5]).tolist() == [4, 0]


EMPTIED = """
import gc
from pagedcache.core import BlockPool, SequenceTable
pool = BlockPool(100000)
table = SequenceTable(pool, 4, max_sequences=60000)

def track(owner):
    for held in gc.get_referents(owner):
        if type(held).__name__ in ("StepBuffers", "GroupBuffers"):
            track(held)
        if type(held) is dict and "copies" in held:
            held["mark"] = []       # so that the collector minds the dict, as later Pythons always do

track(table)
gc.collect()
sid = int(table.admit([[1, 2]]).ids[0])
table.commit(table.extend([sid], [2]), [1, 2])
kids = table.fork([sid], 50000).ravel()
step = table.extend(kids, 1)
del step, table
gc.collect()
assert pool.num_free == 100000, pool.num_free
pool.check()
"""


def test_the_collector_does_not_take_the_arrays_of_an_open_step_from_its_table():
    done = subprocess.run(
        [sys.executable, "-P", "-c", EMPTIED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_destinations_of_a_compaction_are_nobody_elses_meanwhile():
    table = SequenceTable(BlockPool(24), 4)
    small = [prefill(table, [i]) for i in range(23)]
    table.release(small[1::2])
    prefill(table, range(10, 30))
    table.release(small[::2])
    table.evict(24)
    free = table.stats().free
    pairs = table.begin_compaction()
    assert len(pairs) and table.stats().free == free - len(pairs)
    table.check()
    other = prefill(table, range(100, 112))
    assert not set(table.block_table(other).tolist()) & set(pairs[:, 1].tolist())
    table.cancel_compaction()
    assert table.stats().free == free - 3
    assert table.begin_compaction().shape[1] == 2
    table.compact()
    table.check()
