"""Speed faults as counted operations, and nothing that leaks: no clock in here."""

import itertools

import numpy as np
import pytest
from drive import blocks_of, feed, least_growth, prefill

from pagedcache.core import BlockPool, SequenceTable


def test_s05_a_fork_of_64_copies_at_most_63_tails(make):
    table = make(num_blocks=3000, block_size=16, max_sequences=65, max_length=40000)
    sid = prefill(table, np.arange(32 * 1024 - 5))
    used = table.stats().used
    kids = table.fork([sid], 63)[0].tolist()
    assert table.stats().used == used and table.stats().copies == 0
    step = table.extend([sid, *kids], 1)
    assert len(step.copies) == 63 and table.stats().used == used + 63
    table.commit(step, list(range(64)))
    assert table.stats().copies == 63
    step = table.extend([sid, *kids], 1)
    assert len(step.copies) == 0 and len(step.new_blocks) == 0
    table.abandon(step)


def test_s12_a_free_list_gives_the_warmest_blocks_first():
    pool = BlockPool(64)
    first = pool.allocate(4)
    pool.decref(first)
    assert set(pool.allocate(4).tolist()) == set(first.tolist())


def test_s12_free_blocks_go_before_cached_ones(make):
    table = make(num_blocks=8)
    table.release([prefill(table, [1] * 9)])  # 2 cached, 6 free
    table.admit([[2] * 24])
    assert table.match([[1] * 9])[0] == 8 and table.stats().evictions == 0


@pytest.mark.thread_unsafe  # every thread's memory is counted
def test_m03_no_block_is_lost_over_many_cycles():
    table = SequenceTable(BlockPool(12), 4, max_sequences=4)
    rng, turn = np.random.default_rng(3), itertools.count()

    def cycles():
        for cycle, length in zip(turn, rng.choice([3, 4, 5, 8], 400).tolist(), strict=False):
            [sid] = table.admit([[cycle % 7] * length]).ids
            step = table.extend([sid], length)
            table.commit(step, [cycle % 7] * length) if cycle % 3 else table.abandon(step)
            [[kid]] = table.fork([sid])
            feed(table, [sid, kid], [[1], [2]])
            table.truncate([kid], [cycle % 2])
            table.release([sid, kid])
            stats = table.stats()
            assert (stats.free, stats.used, stats.sequences) == (12, 0, 0)

    assert least_growth(cycles) < 400 * 20, "less than any object for each cycle"
    table.check()


def test_m14_the_index_is_bounded_by_the_pool():
    table = SequenceTable(BlockPool(8), 2, max_sequences=2)
    for n in range(10_000):
        [sid] = table.admit([[n, 1, 2]]).ids
        table.commit(table.extend([sid], 3), [n, 1, 2])
        table.release([sid])
        if n % 1000 == 0:
            table.check()
            assert table.stats().cached <= 8
    assert sum(table.match([[n, 1, 2] for n in range(10_000)]).tolist()) == 2 * table.stats().cached <= 16
    assert table.stats().evictions == 10_000 - table.stats().cached


def test_a_fresh_sequence_gets_consecutive_blocks(make):
    table = make(num_blocks=64)
    for prompt in ([1] * 64, [2] * 40):
        blocks = blocks_of(table, prefill(table, prompt))
        assert blocks == list(range(blocks[0], blocks[0] + len(blocks)))


def test_blocks_run_consecutively_under_churn():
    """Mean run of consecutive ids at least 3 at 90 % use, with sequences that come, grow and go."""
    table = SequenceTable(BlockPool(4096), 16, max_sequences=256, max_length=4096)
    rng, live = np.random.default_rng(1), []
    for turn in range(600):
        while table.stats().used < 3686:
            admission = table.admit([[turn * 3 % 1000] * int(rng.integers(16, 1024))])
            if admission.status[0]:
                break
            sid = int(admission.ids[0])
            size = len(blocks_of(table, sid)) * 16 - 15
            table.commit(table.extend([sid], size), None)
            live.append(sid)
        grown = [s for s in live[: len(live) // 2] if table.position(s) < 4000]
        if table.can_extend(grown, 32):
            table.commit(table.extend(grown, 32), None)
        if len(live) > 4:
            gone = [live.pop(int(rng.integers(len(live)))) for _ in range(3)]
            table.release(gone)
    blocks = [np.array(blocks_of(table, s)) for s in live]
    runs = sum(1 + int((np.diff(b) != 1).sum()) for b in blocks if len(b))
    assert sum(map(len, blocks)) / runs >= 3
    table.check()


@pytest.mark.thread_unsafe  # every thread's memory is counted
@pytest.mark.parametrize("rows", [1, 64])
def test_steps_reuse_their_buffers(make, rows):
    """A decode step makes no Python object that grows with context; memory stays flat over hundreds of steps."""
    table = make(num_blocks=rows * 40, block_size=16, max_sequences=rows)
    ids = table.admit([[n] * 9 for n in range(rows)]).ids
    feed(table, ids, [[n] * 9 for n in range(rows)])
    tokens = np.ones(rows, np.int32)

    def steps():
        for _ in range(150):
            table.commit(table.extend(ids, 1), tokens)

    assert least_growth(steps) < 150 * 20, "less than any object for each step"
