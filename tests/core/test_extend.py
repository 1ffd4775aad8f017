"""extend and can_extend: slots for new tokens, all or nothing. DESIGN 3 and 4.1, 4.3."""

import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot

from pagedcache.errors import OutOfBlocks


def tables(step):
    return [[b for b in row if b != -1] for row in step.block_tables.tolist()]


def test_one_count_for_all(make):
    table = make()
    ids = [prefill(table, [1]), prefill(table, [2, 3])]
    step = table.extend(ids, 2)
    assert step.kv_lens.tolist() == [3, 4] and step.num_tokens == 4
    table.commit(step, [5, 6, 7, 8])


def test_ragged_counts_with_zeros(make):
    table = make()
    ids = [prefill(table, [1] * n) for n in (1, 4, 6)]
    step = table.extend(ids, [0, 3, 0])
    assert step.kv_lens.tolist() == [1, 7, 6] and step.qo_indptr.tolist() == [0, 0, 3, 3]
    table.abandon(step)


def test_w12_an_empty_step_opens_and_closes(make):
    table = make()
    step = table.extend([], [])
    assert (step.num_sequences, step.num_tokens) == (0, 0) and step.qo_indptr.tolist() == [0]
    assert table.commit(step, []) == 0


def test_w12_a_row_without_tokens_in_a_step_without_tokens(make):
    table = make()
    [sid] = table.admit([[]]).ids
    step = table.extend([sid], 0)
    assert step.kv_lens.tolist() == [0] and (step.block_tables == -1).all()
    assert table.commit(step, []) == 0


def test_allocates_only_what_lies_beyond(make):
    table = make()
    sid = prefill(table, [1, 2, 3])
    assert table.stats().used == 1
    feed(table, [sid], [[4]])
    assert table.stats().used == 1
    feed(table, [sid], [[5]])
    assert table.stats().used == 2


def test_rows_keep_their_order(make):
    table = make()
    a, b, c = (prefill(table, [t]) for t in range(3))
    step = table.extend([c, a, b], [1, 2, 3])
    assert step.ids.tolist() == [c, a, b]
    assert tables(step) == [blocks_of(table, s) for s in (c, a, b)]
    table.abandon(step)


def test_m01_running_out_in_a_later_row_changes_nothing(make):
    table = make(num_blocks=4)
    a, b = prefill(table, [1] * 4), prefill(table, [2] * 4)
    before = snapshot(table, a, b)
    with pytest.raises(OutOfBlocks) as caught:
        table.extend([a, b], [4, 8])
    assert isinstance(caught.value, MemoryError)
    assert snapshot(table, a, b) == before


def test_m02_after_a_failed_extend_the_row_is_intact(make):
    table = make(num_blocks=4)
    sid, other = prefill(table, [1] * 6), prefill(table, [2])
    with pytest.raises(OutOfBlocks):
        table.extend([sid], 8)
    assert position_of(table, sid) == 6 and len(blocks_of(table, sid)) == 2
    table.release([sid, other])
    assert table.stats().free == 4


def test_running_out_evicts_nothing(make):
    table = make(num_blocks=4)
    table.release([prefill(table, range(5))])  # 1 cached
    a, b = prefill(table, [7]), prefill(table, [8])
    with pytest.raises(OutOfBlocks):
        table.extend([a, b], [8, 8])
    assert table.match([range(5)])[0] == 4 and table.stats().evictions == 0


def test_beyond_the_longest_length_is_a_value_error_naming_the_bound(make):
    table = make(max_length=10)
    sid = prefill(table, [1] * 8)
    before = snapshot(table, sid)
    with pytest.raises(ValueError, match="10"):
        table.extend([sid], 3)
    assert snapshot(table, sid) == before
    feed(table, [sid], [[1, 1]])


def test_without_max_length_the_pool_is_the_bound(make):
    table = make(num_blocks=2)
    sid = prefill(table, [1] * 7)
    feed(table, [sid], [[1]])
    with pytest.raises(ValueError):
        table.extend([sid], 1)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("free", range(5))
def test_m06_can_extend_agrees_with_extend(make, free, shared, published):
    """A whole little world: every length, every count, a tail that is shared, published or the row's own."""
    for length in range(13):
        for count in range(10):
            table = make(num_blocks=16, max_sequences=8)
            sid = prefill(table, range(length))
            if published and length:
                feed(table, [sid], [[90] * (-length % 4)])
                table.truncate([sid], [length])
            if shared:
                table.fork([sid])
            table.admit([[99] * (4 * (table.stats().free - free))])
            assert table.stats().free == free
            before = snapshot(table, sid)
            can = table.can_extend([sid], [count])
            new = -(-(length + count) // 4) - -(-length // 4)
            copy = bool(count and length % 4 and (shared or published))
            assert can == (new + copy <= free)
            assert snapshot(table, sid) == before
            if can:
                step = table.extend([sid], [count])
                assert len(step.copies) == copy
                table.abandon(step)
            else:
                with pytest.raises(OutOfBlocks):
                    table.extend([sid], [count])
            assert snapshot(table, sid)[1:] == before[1:]
            table.check()


@pytest.mark.parametrize("parent_first", [True, False])
def test_w19_the_writer_of_a_shared_tail_gets_a_copy(make, parent_first):
    table = make()
    a = prefill(table, range(6))
    [[b]] = table.fork([a])
    shared = blocks_of(table, a)
    first, second = (a, b) if parent_first else (b, a)
    step = table.extend([first], 1)
    [[src, dst]] = step.copies.tolist()
    assert src == shared[1] and dst not in shared
    table.commit(step, [7])
    step = table.extend([second], 1)
    assert len(step.copies) == 0  # sole owner by then
    table.commit(step, [8])
    assert blocks_of(table, first) == [shared[0], dst] and blocks_of(table, second) == shared
    table.release([a])
    step = table.extend([b], 1)
    assert len(step.copies) == 0
    table.commit(step, [9])


def test_w19_both_in_one_step_cost_one_copy(make):
    table = make()
    a = prefill(table, range(6))
    [[b]] = table.fork([a])
    step = table.extend([a, b], 1)
    assert len(step.copies) == 1
    one, two = tables(step)
    assert one[0] == two[0] and one[1] != two[1]
    table.commit(step, [7, 8])
    assert table.stats().copies == 1


def test_a_published_block_is_copied_even_by_its_only_owner(make):
    """Contract 1, and the index keeps the original."""
    table = make()
    sid = prefill(table, range(8))
    table.truncate([sid], [6])
    old = blocks_of(table, sid)
    step = table.extend([sid], 1)
    assert step.copies.tolist() == [[old[1], blocks_of(table, sid)[1]]]
    table.commit(step, [99])
    assert table.match([range(9)])[0] == 8 and table.stats().cached == 1


def test_can_extend_counts_the_copy_of_a_published_block(make):
    table = make(num_blocks=2)
    sid = prefill(table, range(8))
    table.truncate([sid], [6])
    assert not table.can_extend([sid], 1)
    with pytest.raises(OutOfBlocks):
        table.extend([sid], 1)


def test_a_row_without_new_tokens_copies_nothing(make):
    table = make()
    a = prefill(table, range(6))
    table.fork([a])
    step = table.extend([a], 0)
    assert len(step.copies) == 0
    table.abandon(step)


def test_a_boundary_needs_no_copy(make):
    table = make()
    a = prefill(table, range(8))
    table.fork([a])
    step = table.extend([a], 1)
    assert len(step.copies) == 0
    table.abandon(step)


def test_no_block_is_source_and_destination(make):
    table = make(num_blocks=40, max_sequences=16)
    sids = [prefill(table, [t] * 6) for t in range(4)]
    kids = table.fork(sids, 2).ravel().tolist()
    step = table.extend([*sids, *kids], 1)
    sources, destinations = step.copies.T.tolist()
    assert not set(sources) & set(destinations) and len(set(destinations)) == len(destinations) == 8
    table.abandon(step)


def test_can_extend_has_no_effect(make):
    table = make(num_blocks=4)
    table.release([prefill(table, range(5))])  # 1 cached
    a, b = prefill(table, [7]), prefill(table, [8])
    before = snapshot(table, a, b)
    assert table.can_extend([a, b], [7, 7]) and not table.can_extend([a, b], [7, 8])
    assert snapshot(table, a, b) == before and table.match([range(5)])[0] == 4


def test_eviction_makes_room(make):
    table = make(num_blocks=3)
    table.release([prefill(table, range(8))])
    sid = prefill(table, [9])
    step = table.extend([sid], 11)
    assert table.stats().evictions == 2 and table.stats().cached == 0
    table.abandon(step)
    assert table.stats().evictions == 2 and table.match([range(8)])[0] == 0  # evictions stay
