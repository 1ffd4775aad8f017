"""admit: prompt by prompt match, pin, allocate; each prompt all or nothing. DESIGN 3 (Admission) and 4.2."""

import numpy as np
import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot

from pagedcache.core import AdmitStatus
from pagedcache.errors import InvalidSequence, OutOfBlocks

ADMITTED, NOT_NOW, NEVER_FITS = AdmitStatus.ADMITTED, AdmitStatus.NOT_NOW, AdmitStatus.NEVER_FITS


def test_admission_arrays(make):
    admission = make().admit([[1, 2, 3], [4]])
    assert (admission.ids.dtype, admission.cached.dtype, admission.status.dtype) == (np.int64, np.int32, np.int8)
    assert admission.ids.shape == admission.cached.shape == admission.status.shape == (2,)
    assert (ADMITTED, NOT_NOW, NEVER_FITS) == (0, 1, 2)


def test_no_prompts_no_rows(make):
    table = make()
    admission = table.admit([])
    assert admission.ids.shape == (0,) and table.stats().sequences == 0


@pytest.mark.parametrize(
    ("length", "reserve", "blocks"), [(0, 0, 0), (1, 0, 1), (4, 0, 1), (5, 0, 2), (5, 3, 2), (5, 4, 3), (0, 1, 1)]
)
def test_allocates_the_whole_prompt_plus_reserve(make, length, reserve, blocks):
    table = make()
    [sid] = table.admit([[1] * length], reserve=reserve).ids
    assert table.stats().used == len(blocks_of(table, sid)) == blocks
    assert position_of(table, sid) == 0


def test_an_empty_prompt_is_legal(make):
    table = make()
    admission = table.admit([[]])
    assert admission.status[0] == ADMITTED and admission.cached[0] == 0
    assert feed(table, admission.ids, [[1, 2, 3, 4, 5]]) == 1


def test_extend_inside_the_admitted_prompt_never_runs_out(make):
    table = make(num_blocks=4)
    admission = table.admit([[1] * 9, [2] * 3])
    assert table.stats().free == 0
    for _ in range(3):
        feed(table, admission.ids, [[1, 1, 1], [2]])
    assert table.stats().free == 0


def test_reserve_is_extended_into_without_allocating(make):
    table = make(num_blocks=3)
    [sid] = table.admit([[1, 2, 3, 4]], reserve=8).ids
    feed(table, [sid], [[1, 2, 3, 4]])
    for token in range(8):
        assert feed(table, [sid], [[token]]) == (token % 4 == 3)
    with pytest.raises(ValueError, match="12"):
        table.extend([sid], 1)


def test_position_after_a_hit_is_the_cached_length(make):
    table = make()
    prefill(table, range(10))
    admission = table.admit([range(11)])
    assert admission.cached[0] == 8 and position_of(table, admission.ids[0]) == 8


def test_position_after_pads_is_the_pad(make):
    table = make()
    admission = table.admit([[1, 2], [1, 2], [1, 2]], pads=[0, 3, 5])
    assert [position_of(table, s) for s in admission.ids] == [0, 3, 5]
    assert [len(blocks_of(table, s)) for s in admission.ids] == [1, 2, 2]


def test_a_padded_row_neither_matches_nor_publishes(make):
    table = make()
    prefill(table, range(9))
    admission = table.admit([range(9)], pads=[4])
    assert admission.cached[0] == 0
    other = [7] * 9
    [padded] = table.admit([other], pads=[4]).ids
    assert feed(table, [padded], [other]) == 0
    assert table.match([other])[0] == 0


@pytest.mark.parametrize("length", range(13))
def test_w07_something_is_left_to_compute(make, length):
    table = make()
    prefill(table, range(16))
    [cached] = table.admit([range(length)]).cached
    assert cached == max(0, length - 1) == table.match([range(length)])[0]


def test_w01_a_recycled_block_is_not_found_under_its_old_prompt(make):
    table = make(num_blocks=2)
    table.release([prefill(table, [1, 2, 3, 4, 5])])
    assert table.match([[1, 2, 3, 4, 5]])[0] == 4
    table.release([prefill(table, [9] * 5)])
    assert table.match([[1, 2, 3, 4, 5]])[0] == 0
    assert table.stats().cached <= 2


def test_prompts_of_one_call_do_not_hit_each_other(make):
    assert make().admit([[1] * 9, [1] * 9]).cached.tolist() == [0, 0]


def test_stops_at_the_first_not_now(make):
    table = make(num_blocks=4)
    admission = table.admit([[1] * 8, [2] * 12, [3]])
    assert admission.status.tolist() == [ADMITTED, NOT_NOW, NOT_NOW]
    assert admission.ids[0] >= 0 and admission.ids[1:].tolist() == [-1, -1]
    assert admission.cached[1:].tolist() == [0, 0]
    assert table.stats().used == 2 and table.stats().sequences == 1


def test_never_fits_does_not_stop_the_call(make):
    table = make(num_blocks=4, max_length=10)
    admission = table.admit([[1] * 11, [2] * 10, [3] * 17])
    assert admission.status.tolist() == [NEVER_FITS, ADMITTED, NEVER_FITS]
    assert admission.ids[[0, 2]].tolist() == [-1, -1]


def test_after_not_now_everything_is_not_now(make):
    assert make(num_blocks=2).admit([[1] * 8, [1], [2] * 99]).status.tolist() == [ADMITTED, NOT_NOW, NOT_NOW]


@pytest.mark.parametrize("bounds", [{"max_length": 8}, {"num_blocks": 2}])
def test_never_fits_counts_pads_and_reserve(make, bounds):
    table = make(**bounds)
    for prompt, pad, reserve, fits in [
        (8, 0, 0, 1),
        (9, 0, 0, 0),
        (4, 4, 0, 1),
        (4, 5, 0, 0),
        (4, 2, 2, 1),
        (4, 2, 3, 0),
    ]:
        admission = table.admit([[1] * prompt], pads=[pad], reserve=reserve)
        assert admission.status[0] == (ADMITTED if fits else NEVER_FITS)
        table.release(admission.ids[admission.ids >= 0])


def test_too_few_rows_is_not_now(make):
    table = make(max_sequences=2)
    assert table.admit([[1], [2], [3]]).status.tolist() == [ADMITTED, ADMITTED, NOT_NOW]


def test_not_now_changes_nothing(make):
    table = make(num_blocks=4)
    table.release([prefill(table, range(9))])
    sid = prefill(table, [7, 7])
    before = snapshot(table, sid)
    assert table.admit([[5] * 16]).status[0] == NOT_NOW
    assert snapshot(table, sid) == before and table.match([range(9)])[0] == 8


def test_idle_hits_take_usable_blocks_themselves(make):
    table = make(num_blocks=4)
    table.release([prefill(table, range(9))])  # 2 cached, 2 free
    other = prefill(table, [7] * 4)
    assert table.admit([range(14)]).status[0] == NOT_NOW  # 4 blocks; 2 of the 3 usable ones are its own hits
    assert table.match([range(9)])[0] == 8
    table.release([other])
    assert table.admit([range(14)]).cached[0] == 8


def test_hits_in_use_take_nothing(make):
    table = make(num_blocks=5)
    prefill(table, range(9))
    admission = table.admit([range(16)])
    assert admission.status[0] == ADMITTED and admission.cached[0] == 8 and table.stats().free == 0


def test_a_hit_is_pinned_before_the_same_prompt_allocates(make):
    """Contract 10: with every other block in use, the new blocks must not be the hits."""
    table = make(num_blocks=6)
    table.release([prefill(table, range(17))])  # 4 cached chain blocks, 2 free
    [sid] = table.admit([[*range(8), *[9] * 16]]).ids  # 2 hits, 4 new: evicts exactly the chain's other 2
    blocks = blocks_of(table, sid)
    assert len(set(blocks)) == 6 and table.stats().evictions == 2
    assert table.match([range(17)])[0] == 8


def test_hits_are_shared_not_copied(make):
    table = make()
    a = prefill(table, range(9))
    [b] = table.admit([range(9)]).ids
    assert blocks_of(table, b)[:2] == blocks_of(table, a)[:2] and table.stats().copies == 0
    assert blocks_of(table, b)[2] != blocks_of(table, a)[2]


def test_m07_beams_take_only_their_tails(make):
    table = make(num_blocks=14)
    sid = prefill(table, range(40))
    kids = table.fork([sid], 3)[0]
    feed(table, [sid, *kids], [[k] * 4 for k in range(4)])
    assert table.stats().free == 0


def test_m11_scattered_blocks_will_do(make):
    table = make()
    ids = table.admit([[t] for t in range(16)]).ids
    table.release(ids[::2])
    assert table.admit([[1] * 32]).status[0] == ADMITTED


def test_w39_a_reused_row_starts_at_zero_and_its_old_handle_is_dead(make):
    table = make(max_sequences=1)
    old = prefill(table, [1, 2, 3])
    table.release([old])
    [new] = table.admit([[5]]).ids
    assert new != old and position_of(table, new) == 0
    assert new & 0xFFFFFFFF == old & 0xFFFFFFFF and new >> 32 != old >> 32
    with pytest.raises(InvalidSequence):
        table.extend([old], 1)


def test_admission_can_evict_the_whole_cache(make):
    table = make(num_blocks=4)
    table.release([prefill(table, range(13))])
    assert table.stats().cached == 3
    assert table.admit([[9] * 16]).status[0] == ADMITTED
    assert table.stats().cached == 0 and table.match([range(13)])[0] == 0


def test_the_prompt_is_not_remembered_only_what_is_committed(make):
    table = make()
    [sid] = table.admit([[1] * 9]).ids
    feed(table, [sid], [[2] * 8])
    assert table.match([[1] * 9])[0] == 0 and table.match([[2] * 9])[0] == 8


def test_out_of_blocks_never_comes_out_of_admit(make):
    table = make(num_blocks=1)
    table.admit([[1]])
    assert table.admit([[1]]).status[0] == NOT_NOW
    with pytest.raises(OutOfBlocks):
        table.extend(table.admit([[]]).ids, 1)
