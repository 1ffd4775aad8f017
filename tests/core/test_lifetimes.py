"""Tables, pools, steps and arrays may end in any order; none can be copied. C08, C13."""

import copy
import gc
import pickle
import subprocess
import sys

import pytest
from drive import least_growth, prefill

from pagedcache import Namespace, salt
from pagedcache.core import (
    ARC,
    LFUDA,
    LRU,
    S3FIFO,
    BlockPool,
    NamespaceQuotas,
    NeverHitFirst,
    PriorityTTL,
    SequenceTable,
)

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared


def test_c13_the_table_may_go_before_its_open_step():
    table = SequenceTable(BlockPool(8), 4)
    step = table.extend(table.admit([[1] * 5]).ids, 5)
    slots = step.slots
    del table
    gc.collect()
    assert len(slots) == 5 and int(slots.min()) >= 4
    del step
    gc.collect()
    assert len(slots) == 5 and int(slots.min()) >= 4


@pytest.mark.parametrize("among", [("table",), ("policy", "table"), ("pool", "table", "policy"), ("policy", "pool")])
@pytest.mark.parametrize("policy", [LRU, ARC, LFUDA, NeverHitFirst, S3FIFO, lambda: PriorityTTL([60, None]), dict])
def test_a_cycle_with_idle_blocks_is_collected_in_any_order(collector, policy, among):
    """The table gives its blocks back while the collector is at work: the policy must still be whole then."""
    own = policy() if policy is not dict else NamespaceQuotas({None: 3})
    pool = BlockPool(24, own)
    table = SequenceTable(pool, 1)
    for token in (1, 2):
        table.release([prefill(table, [token, 5, 6, 7])])
    assert pool.num_cached == 8
    cycle = [{"policy": own, "pool": pool, "table": table}[name] for name in among]
    cycle.append(cycle)
    del own, pool, table, cycle
    gc.collect()


def test_an_array_outlives_its_step_without_harm():
    """Valid until the step is closed: what it says later is left open, but it is never freed memory."""
    table = SequenceTable(BlockPool(2000), 4, max_sequences=300)
    ids = table.admit([[1]] * 2).ids
    step = table.extend(ids, 1)
    kept = [getattr(step, name) for name in ("slots", "block_tables", "kv_lens", "kv_indices", "diff")]
    table.commit(step, [1, 1])
    del step
    for _ in range(3):
        ids = table.admit([[1]] * 80).ids
        table.commit(table.extend(ids, 20), [1] * 1600)
    del table
    gc.collect()
    assert all(int(array.sum()) is not None for array in kept)


def test_c13_the_pool_may_go_before_its_table():
    pool = BlockPool(8)
    table = SequenceTable(pool, 4)
    del pool
    gc.collect()
    assert prefill(table, [1] * 5) >= 0
    table.check()


def test_c13_a_table_in_a_cycle_gives_its_blocks_back():
    pool = BlockPool(8)
    table = SequenceTable(pool, 4)
    table.admit([[1] * 9])
    step = table.extend(table.admit([[2] * 5]).ids, 5)
    cycle = [table, step]
    cycle.append(cycle)
    del table, step, cycle
    gc.collect()
    assert pool.num_free == 8
    pool.check()


def everything(pool):
    """A table in the middle of everything, and what else refers to it."""
    table = SequenceTable(pool, 4, steps_in_flight=2, events="tokens")
    keys = {"namespace": Namespace("n", secret=b"0123456789abcdef"), "keys": [[salt("s", 5)]]}
    a, b = prefill(table, [1] * 9), prefill(table, [2] * 9, **keys)
    kids = table.fork([a, b])[:, 0].tolist()
    table.pin([[1] * 9], "pinned")
    table.pin([[2] * 9], "keyed", **keys)
    table.swap_out(kids[1:])
    old, new = table.extend([a, kids[0]], 3, cascade=True), table.extend([a], 5, depths=[0] * 5)
    table.release([a])
    table.cover(7)
    table.release([b])
    return table, old, new


@pytest.mark.parametrize("last", ["table", "step", "array", "pool", "cycle"])
def test_c13_steps_pins_events_swaps_and_fences_end_in_any_order(last):
    pool = BlockPool(64)
    table, old, new = everything(pool)
    assert pool.num_free < 64
    keep = {"table": table, "step": new, "array": old.slots, "pool": None, "cycle": [table, old, new]}[last]
    if last == "cycle":
        keep.append(keep)
    del table, old, new
    gc.collect()
    if last in ("array", "pool"):  # a step keeps its table
        assert pool.num_free == 64
    del keep
    gc.collect()
    assert (pool.num_free, pool.num_waiting, pool.num_cached) == (64, 0, 0)
    pool.check()
    assert pool.decref(pool.allocate(64)) == 64


def test_a_step_keeps_its_table():
    table, old, new = everything(BlockPool(64))
    del table
    gc.collect()
    old.owner.commit(old, [1] * 6)
    new.owner.abandon(new)
    assert new.closed and new.owner.open_steps == ()


def test_many_tables_in_cycles_leave_no_memory():
    def rounds():
        for _ in range(50):
            cycle = [*everything(BlockPool(64))]
            cycle.append(cycle)

    assert least_growth(rounds) < 50 * 50, "less than any object for each cycle"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_c08_copies_of_tables_and_steps_are_refused(make, duplicate):
    table = make()
    step = table.extend([], [])
    for thing in (table, step):
        with pytest.raises(TypeError, match=type(thing).__name__):
            duplicate(thing)


@pytest.mark.parametrize(
    "ending", ["", "del pool", "del table", "del step", "raise SystemExit(0)", "t = [table]; t.append(t)"]
)
def test_c13_the_interpreter_ends_quietly_with_live_sequences_and_an_open_step(ending):
    code = "\n".join(
        [
            "from pagedcache.core import BlockPool, SequenceTable",
            "pool = BlockPool(32)",
            "table = SequenceTable(pool, 4, steps_in_flight=2, events='tokens')",
            "sid = int(table.admit([[1] * 9], namespace='n').ids[0])",
            "table.commit(table.extend([sid], 9), [1] * 9)",
            "table.pin([[1] * 9], 'pinned', namespace='n')",
            "table.swap_out(table.fork([sid])[0])",
            "table.cover(1)",
            "step = table.extend(table.admit([[1] * 9]).ids, 9)",
            "newer = table.extend([sid], 9)",
            "slots = step.slots",
            ending,
        ]
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
