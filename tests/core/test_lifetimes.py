"""Tables, pools, steps and arrays may end in any order; none can be copied. C08, C13."""

import copy
import gc
import pickle
import subprocess
import sys

import pytest
from drive import prefill

from pagedcache.core import BlockPool, SequenceTable


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
            "pool = BlockPool(8)",
            "table = SequenceTable(pool, 4)",
            "step = table.extend(table.admit([[1] * 9]).ids, 9)",
            "slots = step.slots",
            ending,
        ]
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
