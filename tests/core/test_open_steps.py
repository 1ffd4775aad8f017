"""What is legal between extend and commit or abandon. DESIGN 3 (Open steps) and 4.14."""

import contextlib

import numpy as np
import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot

from pagedcache.errors import InvalidSequence, StepBusy, StepClosed, StepOpen


def test_a_second_extend_is_refused(make):
    table = make()
    a, b = prefill(table, [1]), prefill(table, [2])
    step = table.extend([a], 1)
    used = table.stats().used
    for ids in ([a], [b], []):
        with pytest.raises(StepBusy):
            table.extend(ids, 1)
    assert table.stats().used == used
    table.commit(step, [5])
    table.abandon(table.extend([b], 1))


def test_can_extend_is_no_yes_while_extend_would_refuse(make):
    table = make()
    a, b = prefill(table, [1]), prefill(table, [2])
    step = table.extend([a], 1)
    with contextlib.suppress(StepBusy):
        assert not table.can_extend([b], 1)
    table.abandon(step)
    assert table.can_extend([b], 1)


@pytest.mark.parametrize("verb", ["fork", "truncate"])
def test_step_open_for_the_rows_it_names(make, verb):
    table = make()
    a, b = prefill(table, [1] * 5), prefill(table, [2] * 5)
    step = table.extend([a], 1)
    arguments = ([4, 4],) if verb == "truncate" else ()
    used = table.stats().used, table.stats().sequences
    with pytest.raises(StepOpen, match=str(a)):
        getattr(table, verb)([b, a], *arguments)
    assert (table.stats().used, table.stats().sequences) == used
    getattr(table, verb)([b], *([4],) if arguments else ())
    table.commit(step, [7])
    assert position_of(table, a) == 6


def test_a_row_of_no_tokens_is_named_too(make):
    table = make()
    a = prefill(table, [1] * 5)
    step = table.extend([a], 0)
    with pytest.raises(StepOpen):
        table.truncate([a], [1])
    table.abandon(step)


def test_other_verbs_go_on(make):
    table = make()
    a, b = prefill(table, range(8)), prefill(table, [9])
    step = table.extend([a], 1)
    assert table.match([range(9)])[0] == 8
    assert table.admit([range(9)]).cached[0] == 8
    assert table.release([b]) == 1
    table.check()
    table.commit(step, [0])


def test_abandon_is_as_if_it_never_was(make):
    table = make()
    ids = [prefill(table, range(6)), prefill(table, [7] * 4)]
    kid = int(table.fork(ids[:1])[0, 0])
    before = snapshot(table, *ids, kid)
    step = table.extend([*ids, kid], [3, 9, 2])
    assert len(step.copies) == 1
    table.abandon(step)
    assert snapshot(table, *ids, kid)[1:] == before[1:]
    assert [getattr(table.stats(), n) for n in ("free", "used", "cached", "shared")] == [
        before[0][i] for i in (0, 2, 1, 4)
    ]
    assert feed(table, ids, [[6, 7], [8]]) == 1


@pytest.mark.parametrize("order", ["longer first", "shorter first"])
def test_abandon_after_a_shorter_sharer_wrote(make, order):
    """A row that gets its old block back must find its own tokens there: nobody of that step wrote over them."""
    table = make()
    a = prefill(table, [1, 2, 3])
    [[b]] = table.fork([a], at=2)
    [block] = blocks_of(table, a)
    step = table.extend([a, b] if order == "longer first" else [b, a], 1)
    assert block * 4 + 2 not in step.slots.tolist()
    table.abandon(step)
    assert blocks_of(table, a) == blocks_of(table, b) == [block]


def test_abandon_returns_the_copied_row_to_its_source(make):
    table = make(num_blocks=3)
    sid = prefill(table, range(8))
    table.truncate([sid], [6])
    kept = blocks_of(table, sid)
    step = table.extend([sid], 1)
    assert table.stats().used == 3  # the source is held until the step closes
    table.abandon(step)
    assert blocks_of(table, sid) == kept and table.stats().used == 2
    assert table.match([range(9)])[0] == 8


def test_the_source_of_a_copy_is_usable_only_when_the_step_closes(make):
    table = make(num_blocks=3)
    sid = prefill(table, range(8))
    table.truncate([sid], [6])
    step = table.extend([sid], 1)
    assert table.stats().free == 0 and table.admit([[9]]).status[0] == 1
    table.commit(step, [70])
    assert table.stats().free == 1 and table.stats().cached == 1


def test_evictions_of_an_abandoned_step_stay(make):
    table = make(num_blocks=2)
    table.release([prefill(table, range(8))])
    [sid] = table.admit([[]]).ids
    table.abandon(table.extend([sid], 5))
    assert table.match([range(9)])[0] == 0 and table.stats().free == 2


@pytest.mark.parametrize("close", ["commit", "abandon"])
def test_release_of_a_named_row_gives_its_blocks_back_at_the_close(make, close):
    table = make()
    a, b = prefill(table, [1] * 6), prefill(table, [2] * 6)
    step = table.extend([a, b], 3)
    used = table.stats().used
    assert table.release([a]) == 0 and table.stats().used == used
    assert table.stats().sequences == 1
    with pytest.raises(InvalidSequence):
        table.release([a])
    getattr(table, close)(step, *([[5] * 6] if close == "commit" else []))
    assert table.stats().used == len(blocks_of(table, b)) == (3 if close == "commit" else 2)
    assert position_of(table, b) == (9 if close == "commit" else 6)


def test_a_released_row_is_skipped_by_commit(make):
    table = make()
    a, b = prefill(table, [1] * 6), prefill(table, [2] * 6)
    step = table.extend([a, b], 2)
    table.release([a])
    assert table.commit(step, [1, 1, 2, 2]) == 1
    assert table.match([[1] * 9, [2] * 9]).tolist() == [4, 8]


def test_all_rows_released_before_the_close(make):
    for close in ("commit", "abandon"):
        table = make()
        a = prefill(table, [1] * 6)
        table.fork([a])
        step = table.extend([a], 2)
        table.release([a])
        getattr(table, close)(step, *([[1, 1]] if close == "commit" else []))
        assert table.stats().used == 2 and table.stats().shared == 0


def test_a_row_released_in_an_open_step_is_not_reused_before_the_close(make):
    table = make(max_sequences=1)
    sid = prefill(table, [1] * 6)
    step = table.extend([sid], 2)
    table.release([sid])
    admission = table.admit([[5] * 3])
    assert admission.status[0] == 1 or admission.ids[0] & 0xFFFFFFFF != sid & 0xFFFFFFFF
    table.commit(step, [1, 1])
    assert table.admit([[5] * 3]).status[0] == 0


def test_blocks_of_a_released_named_row_are_not_handed_out(make):
    table = make(num_blocks=4)
    a = prefill(table, [1] * 4)
    step = table.extend([a], 4)
    held = set(step.block_tables[0].tolist())
    table.release([a])
    [other] = table.admit([[9] * 8]).ids
    assert not set(blocks_of(table, other)) & held
    assert table.admit([[9]]).status[0] == 1
    table.commit(step, [1] * 4)
    assert table.admit([[9]]).status[0] == 0


@pytest.mark.parametrize("close", ["commit", "abandon"])
@pytest.mark.parametrize("again", ["commit", "abandon"])
def test_a_closed_step_raises_on_use(make, close, again):
    table = make()
    sid = prefill(table, [1] * 3)
    step = table.extend([sid], 1)
    assert not step.closed
    getattr(table, close)(step, *([[5]] if close == "commit" else []))
    assert step.closed
    before = snapshot(table, sid)
    with pytest.raises(StepClosed):
        getattr(table, again)(step, *([[5]] if again == "commit" else []))
    assert snapshot(table, sid) == before


ARRAYS = """block_tables copies diff ids kv_indices kv_indptr kv_last_page_len kv_lens kv_pads kv_starts new_blocks
positions qo_indptr slots token_seq""".split()


@pytest.mark.parametrize("name", ARRAYS)
def test_the_arrays_of_a_closed_step_raise(make, name):
    table = make()
    step = table.extend([prefill(table, [1] * 3)], 1)
    getattr(step, name)
    table.commit(step, [5])
    with pytest.raises(StepClosed):
        getattr(step, name)


def test_an_old_step_stays_closed_when_its_buffers_serve_a_new_one(make):
    table = make()
    sid = prefill(table, [1] * 3)
    old = table.extend([sid], 1)
    table.commit(old, [5])
    new = table.extend([sid], 1)
    assert old.closed and not new.closed
    for call in (lambda: table.commit(old, [5]), lambda: table.abandon(old), lambda: old.slots):
        with pytest.raises(StepClosed):
            call()
    table.commit(new, [6])
    assert position_of(table, sid) == 5


def test_a_step_of_another_table_is_refused(make):
    one, two = make(), make()
    a, b = prefill(one, [1] * 3), prefill(two, [2] * 3)
    step, other = one.extend([a], 1), two.extend([b], 1)
    for call in (lambda: two.commit(step, [5]), lambda: two.abandon(step)):
        with pytest.raises((ValueError, StepClosed)):
            call()
    one.commit(step, [5])
    two.commit(other, [5])


def test_a_step_without_a_table_cannot_be_committed(make):
    table = make()
    step = type(table.extend([], [])).from_arrays([[1]], [1], [0, 1], block_size=4)
    for call in (lambda: table.commit(step, [5]), lambda: table.abandon(step)):
        with pytest.raises((ValueError, TypeError, StepClosed)):
            call()


@pytest.mark.parametrize("step", [None, 3, "step", object()])
def test_something_that_is_no_step(make, step):
    table = make()
    for call in (lambda: table.commit(step, [5]), lambda: table.abandon(step)):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("tokens", [[5], [5] * 3, []])
def test_a_commit_of_the_wrong_number_of_tokens_names_both_and_leaves_the_step_open(make, tokens):
    table = make()
    sid = prefill(table, [1] * 3)
    step = table.extend([sid], 2)
    with pytest.raises(ValueError, match=rf"(?s){len(tokens)}.*2|2.*{len(tokens)}"):
        table.commit(step, tokens)
    assert not step.closed
    table.commit(step, [5, 5])
    assert position_of(table, sid) == 5


@pytest.mark.parametrize("bad", [-1, 2**31, -(2**31), 2**40])
def test_a_token_out_of_range_is_named_and_leaves_the_step_open(make, bad):
    table = make()
    sid = prefill(table, [1] * 3)
    step = table.extend([sid], 2)
    with pytest.raises(ValueError, match=str(bad)):
        table.commit(step, np.array([5, bad]))
    assert not step.closed and table.match([[1, 1, 1, 5, 0]])[0] == 0
    table.commit(step, [5, 5])


def test_a_refused_commit_publishes_nothing(make):
    table = make()
    a, b = table.admit([range(4), range(4)]).ids
    step = table.extend([a, b], 4)
    with pytest.raises(ValueError):
        table.commit(step, [*range(4), 0, 1, 2, -3])
    assert table.match([range(5)])[0] == 0
    assert table.commit(step, [*range(4)] * 2) == 1


def test_a_lost_step_can_be_found_and_closed(make):
    table = make()
    assert table.open_steps == ()
    sid = prefill(table, [1, 2])
    table.extend([sid], 1)
    [step] = table.open_steps
    with pytest.raises(StepBusy, match="open_steps"):
        table.extend([sid], 1)
    table.abandon(step)
    assert table.open_steps == ()
    table.commit(table.extend([sid], 1), [3])
