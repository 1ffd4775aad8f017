"""compact: renumbered blocks, so that ids of a sequence run on. The bytes are test_cache_compact.py's."""

import itertools

import numpy as np
import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot

from pagedcache.core import BlockPool, PriorityTTL, SequenceTable
from pagedcache.errors import StepOpen

pytestmark = pytest.mark.thread_unsafe  # a fixture's table, or the collector, is shared


def scatter(table, rows=2, **options):
    """Rows of 8 blocks each that lie two by two in groups 1 to 8 of a pool of 49; groups 9 to 11 are vacant."""
    filler = table.pool.allocate(49)
    table.pool.decref(filler[(filler % 2 == 0) & (filler >= 4) & (filler < 36)])
    ids = table.admit([[]] * rows, **options).ids.tolist()
    tokens = {sid: [] for sid in ids}
    for turn in range(16 // rows):
        for k, sid in enumerate(ids):
            tokens[sid] += [100 * k + turn] * 4
            feed(table, [sid], [tokens[sid][-4:]])
    table.pool.decref(filler[(filler % 2 == 1) | (filler < 4) | (filler >= 36)])
    return tokens


def runs(table, sid):
    """Mean length of runs of consecutive ids."""
    blocks = blocks_of(table, sid)
    return len(blocks) / (1 + sum(b != a + 1 for a, b in itertools.pairwise(blocks)))


@pytest.fixture
def scattered(make):
    table = make(num_blocks=49)
    return table, scatter(table)


def test_the_plan_changes_nothing_and_is_what_compact_does(scattered):
    table, rows = scattered
    before, tables = snapshot(table, *rows), {sid: blocks_of(table, sid) for sid in rows}
    pairs = table.compaction()
    assert pairs.dtype == np.int32 and pairs.shape == (len(pairs), 2) and len(pairs) > 0
    assert snapshot(table, *rows) == before
    sources, destinations = pairs[:, 0].tolist(), pairs[:, 1].tolist()
    assert len({*sources, *destinations}) == 2 * len(pairs), "no block is a source and a destination, or twice one"
    assert all(table.pool.refcount(b) == 0 for b in destinations)
    assert table.compact() == len(pairs)
    moved = dict(pairs.tolist())
    assert {sid: blocks_of(table, sid) for sid in rows} == {
        sid: [moved.get(b, b) for b in blocks] for sid, blocks in tables.items()
    }
    after = snapshot(table, *rows)
    assert after[0] == before[0] and after[2] == before[2]


def test_runs_get_longer(scattered):
    table, rows = scattered
    before = {sid: runs(table, sid) for sid in rows}
    while table.compact():
        table.check()
    for sid in rows:
        assert runs(table, sid) >= max(4, before[sid])
        groups = [blocks_of(table, sid)[j : j + 4] for j in range(0, 8, 4)]
        assert all(group == list(range(group[0], group[0] + 4)) for group in groups)


def test_moved_blocks_are_found_and_written_as_before(scattered):
    table, rows = scattered
    assert table.compact() > 0
    for tokens in rows.values():
        assert table.match([[*tokens, 0]])[0] == len(tokens)
    table.check()
    for sid, tokens in rows.items():
        assert feed(table, [sid], [[7] * 4]) == 1
        assert table.match([[*tokens, *[7] * 4, 0]])[0] == len(tokens) + 4
    assert table.release(list(rows)) == 18


def test_a_tail_that_is_not_full_moves_with_its_tokens(make):
    table = make(num_blocks=49)
    rows = scatter(table)
    for sid in rows:
        table.truncate([sid], position_of(table, sid) - 2)
    assert table.compact() > 0
    for sid, tokens in rows.items():
        feed(table, [sid], [tokens[-2:]])
        assert table.match([[*tokens, 0]])[0] == len(tokens)


def test_steps_show_the_new_ids(scattered):
    table, rows = scattered
    table.commit(table.extend(list(rows), 1), [1, 1])
    table.compact()
    step = table.extend(list(rows), 1)
    told = {(row, logical): block for row, logical, block in step.diff.tolist()}
    for k, sid in enumerate(rows):
        blocks = blocks_of(table, sid)
        assert step.block_tables[k, : len(blocks)].tolist() == blocks
        assert [told.get((sid & 0xFFFFFFFF, j), b) for j, b in enumerate(blocks)] == blocks
    table.abandon(step)


def test_a_device_table_catches_up(scattered):
    table, rows = scattered
    device = {}
    for turn in range(3):
        step = table.extend(list(rows), 1)
        device.update({(row, logical): block for row, logical, block in step.diff.tolist()})
        table.commit(step, [turn, turn])
        if turn == 0:
            device = {(s & 0xFFFFFFFF, j): b for s in rows for j, b in enumerate(blocks_of(table, s))}
            assert table.compact() > 0
    for sid in rows:
        assert [device[sid & 0xFFFFFFFF, j] for j in range(9)] == blocks_of(table, sid)


@pytest.mark.parametrize("holder", ["fork", "pin", "fence"])
def test_what_somebody_else_holds_or_reads_stays(scattered, holder):
    table, rows = scattered
    sid, tokens = next(iter(rows.items()))
    if holder == "fork":
        table.fork([sid])
    elif holder == "pin":
        table.pin([tokens], "x")
    else:
        table.cover(1)
        table.release([sid])
        [sid] = table.admit([[*tokens, 0]]).ids.tolist()
    kept = blocks_of(table, sid)[:8]
    sources = table.compaction()[:, 0].tolist()
    assert sources and not set(sources) & set(kept), "those of the other row move"
    table.compact()
    assert blocks_of(table, sid)[:8] == kept
    table.retire(1)


def test_sources_wait_for_the_fence_of_their_copies(scattered):
    table, _ = scattered
    free = table.stats().free
    table.cover(1)
    moved = table.compact()
    assert moved > 0 and table.stats().waiting == moved and table.stats().free == free - moved
    assert table.retire(1) == moved


def test_swapped_rows_stay_where_they_are(scattered):
    table, rows = scattered
    sid, other = rows
    table.swap_out([sid])
    table.compact()
    table.swap_in([sid])
    assert position_of(table, sid) == position_of(table, other) == 32


@pytest.mark.parametrize("verb", ["compact", "compaction"])
def test_open_steps_name_blocks(scattered, verb):
    table, rows = scattered
    step = table.extend([], [])
    before = snapshot(table, *rows)
    with pytest.raises(StepOpen, match="1 step"):
        getattr(table, verb)()
    assert snapshot(table, *rows) == before
    table.abandon(step)
    getattr(table, verb)()


def test_nothing_to_do(make):
    table = make()
    assert table.compact() == 0 and table.compaction().shape == (0, 2)
    sid = prefill(table, range(16))
    kept = blocks_of(table, sid)
    assert table.compact() == 0 and blocks_of(table, sid) == kept
    prefill(table, [1] * 48)
    assert table.compact() == 0, "no vacant group is left"


def test_priorities_move_along():
    table = SequenceTable(BlockPool(49, PriorityTTL([None, None])), 4)
    rows = scatter(table, priority=1)
    low = prefill(table, [7] * 9)
    assert table.compact() > 0
    table.check()
    table.release(list(rows))
    table.release([low])
    table.evict(2)
    assert table.match([[*t, 0] for t in [*rows.values(), [7] * 8]]).tolist() == [32, 32, 0], "the low one goes first"


def test_blocks_move_only_as_they_were_copied(scattered):
    """Between compaction and compact others may have let go of blocks, and then the plan is another."""
    table, rows = scattered
    first, _ = rows
    pairs = table.compaction()
    table.release([first])
    before = snapshot(table)
    for stale in (pairs, pairs[:0], pairs[::-1]):
        assert table.compact(stale) == -1 and snapshot(table) == before
    pairs = table.compaction()
    assert table.compact(pairs) == len(pairs) > 0
