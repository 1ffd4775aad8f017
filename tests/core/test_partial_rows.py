"""A row that shares the head of a block: how it holds it, what each verb makes of that. DESIGN 3 (Admission), 4.1."""

import gc

import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot

from pagedcache.core import AdmitStatus, BlockPool, SequenceTable

PROMPT = list(range(40, 56))  # four blocks of four


def admit(table, prompt, **options):
    """Handle and cached tokens of one admitted prompt."""
    admission = table.admit([prompt], **options)
    assert admission.status[0] == AdmitStatus.ADMITTED
    return int(admission.ids[0]), int(admission.cached[0])


@pytest.fixture
def cached(make):
    """A table of ten blocks; the four of PROMPT are idle and can be found."""
    table = make(num_blocks=10, steps_in_flight=2)
    table.release([prefill(table, PROMPT)])
    return table


def test_the_own_block_waits_behind_the_others(cached):
    whole = blocks_of(cached, prefill(cached, [*PROMPT, 1]))[:4]
    sid, found = admit(cached, [*PROMPT[:14], 1, 2, 3])
    blocks = blocks_of(cached, sid)
    assert (found, len(blocks)) == (14, 6) and blocks[:4] == whole
    step = cached.extend([sid], 3)
    assert step.copies.tolist() == [[whole[3], blocks[5]]] and len(step.new_blocks) == 0
    assert blocks_of(cached, sid) == [*whole[:3], blocks[5], blocks[4]] == step.block_tables[0, :5].tolist()
    assert step.slots.tolist() == [4 * blocks[5] + 2, 4 * blocks[5] + 3, 4 * blocks[4]]
    assert cached.commit(step, [1, 2, 3]) == 1 and cached.stats().copies == 1


def test_ids_run_on_once_it_is_copied(make):
    table = make(num_blocks=20)
    prefill(table, PROMPT)
    sid, _ = admit(table, [*PROMPT[:6], *range(14)])
    feed(table, [sid], [range(14)])
    own = blocks_of(table, sid)[1:]
    assert own == list(range(own[0], own[0] + 4))


def test_the_shared_block_is_never_written_and_its_head_never_read_from_elsewhere(cached):
    """Contract 1."""
    sid, found = admit(cached, PROMPT)
    shared = blocks_of(cached, sid)[3]
    for token in (1, 2):
        step = cached.extend([sid], 1)
        assert shared not in {slot // 4 for slot in step.slots.tolist()}
        cached.commit(step, [token])
    assert found == 15 and cached.match([[*PROMPT, 0]])[0] == 16


def test_content_as_known_is_adopted(cached):
    sid, found = admit(cached, PROMPT)
    shared = blocks_of(cached, sid)
    assert feed(cached, [sid], [PROMPT[found:]]) == 0
    assert blocks_of(cached, sid) == shared[:4] and cached.stats().used == 4


def test_until_the_first_step_closes_it_cannot_be_evicted(cached):
    sid, found = admit(cached, [*PROMPT[:3], 7])
    shared = blocks_of(cached, sid)[0]
    assert cached.evict(10) == 3 and cached.match([PROMPT])[0] == 4
    step = cached.extend([sid], 1)
    assert cached.evict(10) == 0 and cached.pool.refcount(shared) == 1
    cached.commit(step, [7])
    assert cached.pool.refcount(shared) == 0 and cached.evict(10) == 1 and found == 3


def test_with_fences_it_waits_for_the_work_that_reads_it(cached):
    cached.cover(1)
    sid, _ = admit(cached, [*PROMPT[:3], 7])
    feed(cached, [sid], [[7]])
    assert cached.stats().waiting == 1 and cached.retire(1) == 1


def test_a_prompt_as_long_as_can_be_has_room_for_it(make):
    table = make(num_blocks=16, max_length=16, max_sequences=2)
    table.release([prefill(table, PROMPT)])
    sid, found = admit(table, PROMPT)
    assert (found, len(blocks_of(table, sid))) == (15, 5)
    feed(table, [sid], [PROMPT[15:]])


def test_many_of_one_call(make):
    table = make(num_blocks=40)
    prefill(table, PROMPT)
    admission = table.admit([[*PROMPT[:n], 7, 7] for n in range(16)])
    assert admission.cached.tolist() == list(range(16))
    feed(table, admission.ids, [[7, 7]] * 16)


# ---- steps


@pytest.mark.parametrize("count", [1, 2, 6])
def test_abandon_gives_the_copy_back(cached, count):
    sid, _ = admit(cached, [*PROMPT[:14], 1, 2])
    before = snapshot(cached, sid), cached.pool.refcounts().tolist()
    for _ in range(2):
        step = cached.extend([sid], count)
        cached.check()
        cached.abandon(step)
        cached.check()
        assert (snapshot(cached, sid), cached.pool.refcounts().tolist()) == before
    feed(cached, [sid], [[1, 2]])


def test_a_step_of_no_tokens_copies_nothing(cached):
    sid, _ = admit(cached, PROMPT)
    before = snapshot(cached, sid)
    empty = cached.extend([sid], 0)
    step = cached.extend([sid], 1)
    assert len(empty.copies) == 0 and len(step.copies) == 1
    cached.abandon(step)
    cached.commit(empty, [])
    assert snapshot(cached, sid) == before
    feed(cached, [sid], [[7]])


def test_steps_in_flight_are_abandoned_one_by_one(cached):
    sid, _ = admit(cached, [*PROMPT[:6], 1, 2, 3, 4])
    states = [snapshot(cached, sid)]
    first = cached.extend([sid], 1)
    states.append(snapshot(cached, sid))
    second = cached.extend([sid], 5)
    assert len(first.copies) == 1 and len(second.copies) == 0
    cached.check()
    cached.abandon(second)
    assert snapshot(cached, sid) == states[1]
    cached.abandon(first)
    assert snapshot(cached, sid) == states[0]


def test_a_step_of_which_nothing_is_accepted_has_used_the_block(cached):
    """The copy is the row's; what comes later takes blocks from the pool, as for any other row."""
    sid, _ = admit(cached, [*PROMPT[:14], 1, 2, 3])
    own = blocks_of(cached, sid)[-1]
    cached.commit(cached.extend([sid], 2), [1, 2], accepted=[[]])
    assert position_of(cached, sid) == 14 and blocks_of(cached, sid)[3] == own
    [[kid]] = cached.fork([sid])
    step = cached.extend([sid, kid], 1)
    assert step.copies[0, 0] == own and step.copies[0, 1] not in blocks_of(cached, kid)
    assert own in blocks_of(cached, kid) and len(blocks_of(cached, sid)) == 5
    cached.commit(step, [1, 2])


# ---- verbs of sequences


def test_truncate_gives_the_waiting_block_back(cached):
    sid, found = admit(cached, PROMPT)
    assert cached.truncate([sid], [found]) == 1 and len(blocks_of(cached, sid)) == 4
    step = cached.extend([sid], 1)
    assert len(step.copies) == 1
    cached.abandon(step)
    assert len(blocks_of(cached, sid)) == 4
    assert cached.truncate([sid], [found - 1]) == 0
    feed(cached, [sid], [[7, 7]])


def test_truncate_to_whole_blocks_lets_the_shared_one_go(cached):
    sid, _ = admit(cached, PROMPT)
    assert cached.truncate([sid], [12]) == 2 and cached.stats().used == 3
    feed(cached, [sid], [[7, 7, 7, 7]])


def test_each_fork_copies_for_itself(cached):
    sid, found = admit(cached, PROMPT)
    shared, own = blocks_of(cached, sid)[3:]
    [[kid]] = cached.fork([sid])
    assert blocks_of(cached, kid) == blocks_of(cached, sid)[:4] and position_of(cached, kid) == found
    step = cached.extend([kid, sid], 1)
    assert step.copies[:, 0].tolist() == [shared, shared] and step.copies[1, 1] == own != step.copies[0, 1]
    cached.commit(step, [1, 2])
    assert cached.match([[*PROMPT[:15], 1, 0], [*PROMPT[:15], 2, 0]]).tolist() == [16, 16]


def test_reorder_leaves_the_waiting_block_with_those_that_stay(cached):
    a, b = admit(cached, PROMPT)[0], admit(cached, [*PROMPT[:14], 7])[0]
    cached.reorder([a, b], [0, 0])
    assert [len(blocks_of(cached, sid)) for sid in (a, b)] == [5, 4]
    step = cached.extend([a, b], 1)
    assert len(step.copies) == 2
    cached.abandon(step)
    assert [len(blocks_of(cached, sid)) for sid in (a, b)] == [5, 4]
    cached.reorder([a, b], [1, 1])
    assert [len(blocks_of(cached, sid)) for sid in (a, b)] == [4, 4]


@pytest.mark.parametrize("when", ["before", "open", "abandoned", "committed"])
def test_every_block_comes_back(cached, when):
    sid, _ = admit(cached, [*PROMPT[:14], 7, 7, 7])
    step = None if when == "before" else cached.extend([sid], 1)
    if when == "open":
        cached.release([sid])
        cached.check()
    if when in ("open", "abandoned"):
        cached.abandon(step)
    elif when == "committed":
        cached.commit(step, [7])
    if when != "open":
        cached.release([sid])
    assert (cached.stats().used, cached.stats().cached) == (0, 4)


def test_a_table_that_goes_gives_them_back():
    pool = BlockPool(10)
    table = SequenceTable(pool, 4)
    table.release([prefill(table, PROMPT)])
    ids = [admit(table, PROMPT)[0] for _ in range(2)]
    step = table.extend(ids[:1], 1)
    del step, table
    gc.collect()
    pool.check()
    assert pool.num_used == 0


def test_swapped_out_alone_it_comes_back_as_a_block_of_its_own(cached):
    sid, _ = admit(cached, PROMPT)
    blocks, _ = cached.swap_list([sid])
    assert blocks.tolist() == blocks_of(cached, sid)[:4]
    assert cached.swap_out([sid]) == 5 and cached.stats().used == 0
    cached.swap_in([sid])
    step = cached.extend([sid], 1)
    assert len(step.copies) == 0 and step.slots[0] // 4 == blocks_of(cached, sid)[3]
    cached.commit(step, PROMPT[15:])
    assert cached.match([[*PROMPT, 0]])[0] == 16


def test_swapped_out_beside_others_it_stays(cached):
    other, sid = prefill(cached, [*PROMPT, 1]), admit(cached, PROMPT)[0]
    assert cached.swap_out([sid]) == 1 and cached.stats().used == 5
    cached.swap_in([sid])
    step = cached.extend([sid], 1)
    assert step.copies[0, 0] == blocks_of(cached, other)[3]
    cached.commit(step, [7])


def test_compact_moves_it_with_the_rest(make):
    table = make(num_blocks=24, max_sequences=24)
    others = table.admit([[1]] * 24).ids
    table.release(others[::2])
    table.release([prefill(table, PROMPT)])
    sid, _ = admit(table, [*PROMPT[:14], 1, 2, 3])
    table.release(others[1::2])
    assert table.compact() == 4
    step = table.extend([sid], 3)
    assert len(step.copies) == 1
    table.commit(step, [1, 2, 3])
    assert table.match([[*PROMPT, 0]])[0] == 16


@pytest.mark.parametrize("verb", ["reset", "invalidate"])
def test_forgotten_alone_it_is_written_in_place(cached, verb):
    sid, found = admit(cached, PROMPT)
    assert (cached.reset() if verb == "reset" else cached.invalidate(namespace=None)) == 4
    before = snapshot(cached, sid)
    for count in (1, 5):  # the block that was to be its copy is one more that it has
        step = cached.extend([sid], count)
        assert len(step.copies) == len(step.new_blocks) == 0
        cached.check()
        cached.abandon(step)
        assert snapshot(cached, sid) == before
    cached.commit(cached.extend([sid], 5), [0] * 5, accepted=[[]])
    assert position_of(cached, sid) == found
    [[kid]] = cached.fork([sid])
    step = cached.extend([sid, kid], 1)
    assert len(step.copies) == 1 and len(step.new_blocks) == 0
    cached.commit(step, [1, 2])
    assert cached.stats().used == 5


def test_forgotten_and_shared_all_but_the_last_copy(cached):
    ids = [admit(cached, PROMPT)[0] for _ in range(2)]
    cached.reset()
    shared = blocks_of(cached, ids[0])[3]
    step = cached.extend(ids, 1)
    assert step.copies[:, 0].tolist() == [shared] and step.slots[1] // 4 == shared
    cached.commit(step, [1, 2])
