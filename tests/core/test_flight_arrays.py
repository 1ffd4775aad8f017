"""The arrays of several open steps: each set of buffers is one step's, and shows what is right for that one."""

from drive import blocks_of, feed, prefill


def test_a_step_reads_its_arrays_whatever_other_steps_do(make):
    """Contract 14: the arrays of two open steps are independent, wider tables and released rows included."""
    table = make(num_blocks=400, max_sequences=8, steps_in_flight=3)
    a, b = prefill(table, [1] * 6), prefill(table, [2] * 3)
    old = table.extend([a, b], [2, 1])
    names = "block_tables slots positions token_seq kv_lens kv_starts kv_pads qo_indptr ids copies new_blocks diff"
    arrays = {name: getattr(old, name) for name in names.split()}
    seen = {name: array.tolist() for name, array in arrays.items()}
    middle = table.extend([b, a], [300, 1])  # beyond the first width of the tables
    table.release([b])
    newest = table.extend([*table.admit([[5] * 30]).ids, a], [30, 7])
    for name, array in arrays.items():
        assert array.tolist() == seen[name] == getattr(old, name).tolist(), name
    assert middle.block_tables[0, 75] > 0 and middle.kv_lens.tolist() == [304, 9]
    assert newest.kv_lens.tolist() == [30, 16]
    table.abandon(newest)
    table.commit(old, [1, 1, 2])
    table.commit(middle, [3] * 301)


def test_rows_stay_right_in_buffers_that_take_turns(make):
    """Each set of buffers sees a row every other step only: what is shown there must catch up."""
    table = make(num_blocks=200, steps_in_flight=2)
    ids = [prefill(table, [k] * k) for k in (3, 5, 8)]
    steps = []
    for turn in range(12):
        if turn == 5:  # a row is released and replaced, the others change places
            while steps:
                table.commit(steps.pop(0), [7] * 3)
            table.release([ids[0]])
            ids = [ids[2], prefill(table, [9] * 2, pads=[3]), ids[1]]
        if turn == 8:
            table.commit(steps.pop(0), [7] * 3)
            table.truncate(ids, [4, 4, 4])
        steps.append(table.extend(ids, 1))
        for step in steps:
            for k, sid in enumerate(ids):
                live = -(-int(step.kv_lens[k]) // 4)
                row = step.block_tables[k].tolist()
                assert row[:live] == blocks_of(table, sid)[:live] and set(row[live:]) <= {-1}
                assert step.kv_pads[k] == step.kv_starts[k] == (3 if turn >= 5 and k == 1 else 0)
        if len(steps) == 2 or turn == 7:
            table.commit(steps.pop(0), [7] * 3)
    while steps:
        table.commit(steps.pop(0), [7] * 3)


def test_diffs_replayed_in_the_order_of_steps_keep_a_device_table(make):
    table = make(num_blocks=100, steps_in_flight=2)
    first = prefill(table, [1] * 24)
    ids = table.admit([[3], [3]]).ids.tolist()
    device, steps = {}, []
    for _ in range(8):  # ids[0] adopts, block by block, what `first` published
        steps.append(table.extend(ids, [3, 2]))
        device.update({(row, logical): block for row, logical, block in steps[-1].diff.tolist()})
        for k, sid in enumerate(ids):
            live = -(-int(steps[-1].kv_lens[k]) // 4)
            row = [device[sid & 0xFFFFFFFF, j] for j in range(live)]
            assert row == steps[-1].block_tables[k, :live].tolist()
        if len(steps) == 2:
            table.commit(steps.pop(0), [1, 1, 1, 2, 2])
    assert table.stats().adopted > 0
    table.commit(steps.pop(0), [1, 1, 1, 2, 2])
    table.release([first])


def test_a_row_released_and_its_successor_in_one_place(make):
    """The successor has another row while an open step names the old one."""
    table = make(max_sequences=2, steps_in_flight=2)
    a = prefill(table, [1] * 6)
    old = table.extend([a], 1)
    table.release([a])
    b = int(table.admit([[5] * 3]).ids[0])
    assert b & 0xFFFFFFFF != a & 0xFFFFFFFF and table.admit([[6]]).status[0] == 1
    new = table.extend([b], 3)
    assert old.block_tables[0, :2].tolist() != new.block_tables[0, :2].tolist()
    table.commit(old, [1])
    c = int(table.admit([[6]]).ids[0])
    table.commit(new, [5] * 3)
    feed(table, [c, b], [[6], [5]])
