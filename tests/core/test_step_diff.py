"""The diff list: what a copy of the tables on a device must be told, and no more. DESIGN 3 (Step), S09."""

from drive import blocks_of, feed, prefill
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedcache.core import BlockPool, SequenceTable


class Device:
    """A copy of the table that knows only what each step's diff told it."""

    def __init__(self):
        self.entries = {}

    def see(self, step):
        self.entries |= {(row, logical): block for row, logical, block in step.diff.tolist()}
        for sid, blocks, end in zip(step.ids.tolist(), step.block_tables.tolist(), step.kv_lens.tolist(), strict=True):
            pages = -(-end // step.block_size)
            assert [self.entries[sid & 0xFFFFFFFF, k] for k in range(pages)] == blocks[:pages]
        return step


def test_s09_the_diff_is_empty_where_no_row_crosses_a_boundary(make):
    table = make(num_blocks=800, max_sequences=256)
    ids = table.admit([[t] * 5 for t in range(256)]).ids
    feed(table, ids, [[t] * 5 for t in range(256)])
    feed(table, ids, [[1]] * 256)
    step = table.extend(ids, 1)
    assert step.diff.shape == (0, 3) and len(step.new_blocks) == 0
    table.commit(step, [2] * 256)
    feed(table, ids, [[1]] * 256)
    step = table.extend(ids, 1)
    assert len(step.diff) == 256  # one entry each where all cross
    table.commit(step, [2] * 256)


def test_diff_names_row_logical_block_and_id(make):
    table = make()
    a, b = prefill(table, [1] * 4), prefill(table, [2] * 2)
    step = table.extend([b, a], 1)
    new = blocks_of(table, a)[1]
    assert [a & 0xFFFFFFFF, 1, new] in step.diff.tolist()
    table.commit(step, [1, 1])


def test_diff_tells_of_a_copy_and_of_its_undoing(make):
    table, device = make(), Device()
    a = prefill(table, range(6), device.see)
    table.abandon(device.see(table.extend([a], 1)))
    [[b]] = table.fork([a])
    table.abandon(device.see(table.extend([a, b], 1)))
    table.commit(device.see(table.extend([a, b], 1)), [7, 8])
    table.commit(device.see(table.extend([b, a], 1)), [7, 8])


def test_diff_tells_of_an_adopted_block(make):
    table, device = make(), Device()
    a, b = table.admit([range(4), range(4)]).ids.tolist()
    table.commit(device.see(table.extend([a, b], 4)), [*range(4)] * 2)
    step = device.see(table.extend([a, b], 0))
    assert step.block_tables[0, 0] == step.block_tables[1, 0]
    table.abandon(step)


def test_diff_tells_of_blocks_rewritten_after_truncate_and_of_a_reused_row(make):
    table, device = make(num_blocks=8, max_sequences=2), Device()
    a = prefill(table, range(9), device.see)
    table.abandon(device.see(table.extend([a], 0)))
    table.truncate([a], [3])
    taken = prefill(table, [50] * 9, device.see)
    table.commit(device.see(table.extend([a], 8)), [1] * 8)
    table.release([a])
    a = prefill(table, [60] * 5, device.see)
    table.commit(device.see(table.extend([a, taken], 0)), [])


def test_rows_keep_or_change_their_place_in_the_step(make):
    """Buffers are reused: a row that moves, leaves and comes back still shows its own table and pad."""
    table, device = make(num_blocks=40), Device()
    ids = [prefill(table, [t] * n, device.see, pads=[t]) for t, n in enumerate((3, 9, 1, 17))]
    pads = dict(zip(ids, range(4), strict=True))
    for order in ([0, 1, 2, 3], [1, 0], [0, 1, 2, 3], [3, 2, 1, 0], [2], [1, 2], [3], [0, 1, 2, 3]):
        sids = [ids[k] for k in order]
        step = device.see(table.extend(sids, 1))
        assert step.kv_pads.tolist() == step.kv_starts.tolist() == [pads[s] for s in sids]
        for sid, row, end in zip(sids, step.block_tables, step.kv_lens, strict=True):
            live = -(-int(end) // 4)
            assert row[:live].tolist() == blocks_of(table, sid)[:live] and (row[live:] == -1).all()
        table.commit(step, [5] * len(sids))
        table.truncate(sids[:1], [table.position(sids[0]) - 1])


def test_a_row_beyond_the_first_width_widens_the_tables(make):
    """Buffers start narrow and grow: what stood in them before is shown again."""
    table, device = make(num_blocks=1000, block_size=1, max_length=900), Device()
    a, b = prefill(table, [1] * 5, device.see), prefill(table, [2] * 3, device.see)
    table.commit(device.see(table.extend([a, b], 1)), [1, 2])
    for count in (80, 200, 400):
        table.commit(device.see(table.extend([a, b], [1, count])), [1] + [2] * count)
    table.commit(device.see(table.extend([a], 0)), [])


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("easfr"), st.integers(0, 6)), max_size=40))
@settings(max_examples=50, deadline=None)
def test_replaying_every_diff_reproduces_the_tables(calls):
    """Commits, abandoned steps, forks, truncates and reused rows in between: the device's copy is never stale."""
    table, device, live = SequenceTable(BlockPool(60), 2, max_sequences=6), Device(), []
    for which, verb, n in calls:
        if verb == "a" and len(live) < 6:
            live += [s for s in table.admit([[1] * n]).ids.tolist() if s >= 0]
        elif live and verb == "f" and len(live) < 6:
            live += table.fork([live[which % len(live)]])[0].tolist()
        elif live and verb == "r":
            table.release([live.pop(which % len(live))])
        elif live and verb in "es":
            ids = live[: which + 1]
            if not table.can_extend(ids, n):
                continue
            step = device.see(table.extend(ids, n))
            if verb == "s":
                table.abandon(step)
            else:
                table.commit(step, [1] * step.num_tokens)
    table.check()


def test_the_diff_after_an_abandoned_step_repeats_what_that_step_said(make):
    """Its caller may never have seen it: KVCache abandons by itself where a copy fails."""
    table = make()
    sid = int(table.admit([[1] * 9]).ids[0])
    table.abandon(table.extend([sid], 9))
    step = table.extend([sid], 1)
    assert step.diff[:, 1].tolist() == [0] and step.diff[0, 2] == step.block_tables[0, 0]
    assert (step.block_tables[0, 1:] == -1).all()
    table.abandon(step)
    assert (table.extend([sid], 0).block_tables == -1).all()
