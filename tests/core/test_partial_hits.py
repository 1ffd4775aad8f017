"""Partial hits: the head of one block more is shared. What is found, and when. DESIGN 3 (Admission), 4.17, 4.18."""

import numpy as np
import pytest
from drive import blocks_of, feed, position_of, prefill, snapshot

from pagedcache import Namespace, adapter, content, salt
from pagedcache.core import AdmitStatus, BlockPool, SequenceTable
from pagedcache.errors import OutOfBlocks

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


# ---- what is found


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 16])
def test_all_but_the_last_token_of_a_prompt_are_found(make, block_size):
    table = make(num_blocks=64, block_size=block_size)
    tokens = list(range(2 * block_size))
    prefill(table, tokens)
    for length in range(len(tokens) + 1):
        assert table.match([tokens[:length]])[0] == max(0, length - 1)
        sid, found = admit(table, tokens[:length])
        assert found == position_of(table, sid) == max(0, length - 1)
        table.release([sid])


@pytest.mark.parametrize("at", range(16))
def test_a_prompt_is_found_up_to_its_first_other_token(cached, at):  # R05
    prompt = [*PROMPT[:at], 7, *PROMPT[at + 1 :], 7]
    assert cached.match([prompt])[0] == admit(cached, prompt)[1] == at


def test_the_longest_head_is_taken(make):
    table = make()
    for tokens in ([1, 9, 9, 9], [1, 2, 3, 9], [1, 2, 9, 9]):
        prefill(table, tokens)
    assert table.match([[1, 2, 3, 4, 5]])[0] == 3


def test_of_equal_heads_the_newest_is_taken(make):
    table = make()
    first, second = prefill(table, [1, 2, 3, 4]), prefill(table, [1, 2, 3, 5])
    sid, _ = admit(table, [1, 2, 3, 6])
    assert blocks_of(table, sid)[0] == blocks_of(table, second)[0] != blocks_of(table, first)[0]


@pytest.mark.parametrize("under", [[], [8, 8]])
def test_contract_18_only_the_newest_sixteen_blocks_are_looked_at(make, under):
    table = make(num_blocks=80, block_size=2, max_sequences=40)
    for n in range(17):
        table.release([prefill(table, [*under, n, 50])])
    assert table.match([[*under, n, 7] for n in range(17)]).tolist() == [len(under), *[len(under) + 1] * 16]


def test_blocks_that_are_gone_are_looked_at_no_more(make):
    """Whichever of several blocks after the same one goes, the others are found."""
    for gone in range(4):
        table = make(block_size=2)
        ids = [prefill(table, [8, 8, n, 5]) for n in range(4)]
        table.release([ids.pop(gone)])
        assert table.evict(1) == 1
        table.check()
        assert table.match([[8, 8, n, 6] for n in range(4)]).tolist() == [2 + (n != gone) for n in range(4)]


def test_tokens_found_are_counted(cached):
    admit(cached, PROMPT)
    assert cached.stats().hit_tokens == 15


def test_pads_find_nothing(cached):
    assert admit(cached, PROMPT, pads=[4])[1] == 0


def test_only_full_blocks_are_pinned(cached):
    assert cached.pin([PROMPT[:7]], "head") == 1


# ---- keys: a block is shared in part only where whatever begins in it is the same


HEAD = [1, 1, 1, 1, 1, 1, 7]  # six tokens as known; one block of four, and two more


@pytest.mark.parametrize(
    ("published", "wanted", "found"),
    [
        ({}, {}, 6),
        ({"keys": [[salt("a", 5)]]}, {"keys": [[salt("a", 5)]]}, 6),
        ({"keys": [[salt("a", 5)]]}, {"keys": [[salt("b", 5)]]}, 4),
        ({"keys": [[salt("a", 5)]]}, {}, 4),
        ({}, {"keys": [[salt("a", 5)]]}, 4),
        ({}, {"keys": [[adapter("a", 7)]]}, 4),  # it begins behind the head, in the same block
        ({"keys": [[content("cat", 2, 6)]]}, {"keys": [[content("cat", 2, 6)]]}, 6),
        ({"keys": [[content("cat", 2, 6)]]}, {"keys": [[content("cat", 2, 7)]]}, 0),
        ({"keys": [[content("cat", 5, 7)]]}, {"keys": [[content("cat", 5, 7)]]}, 6),
        ({"keys": [[content("cat", 5, 7)]]}, {"keys": [[content("dog", 5, 7)]]}, 4),
        ({"namespace": "a"}, {"namespace": "a"}, 6),
        ({"namespace": "a"}, {}, 0),
        ({}, {"namespace": "a"}, 0),
        ({"namespace": "a"}, {"namespace": "b"}, 0),
    ],
)
def test_no_head_crosses_a_key(make, published, wanted, found):
    table = make()
    prefill(table, [1] * 8, **published)
    assert table.match([HEAD], **wanted)[0] == admit(table, HEAD, **wanted)[1] == found


def test_no_head_of_a_first_block_crosses_a_namespace(make):
    table = make()
    ours = Namespace("ours", secret=b"at least 16 bytes")
    prefill(table, [1] * 4, namespace=ours)
    for namespace, found in ((None, 0), ("theirs", 0), (ours, 2)):
        assert table.match([[1, 1, 7]], namespace=namespace)[0] == found


# ---- blocks are short


def test_extend_inside_the_admitted_prompt_never_runs_out(make):
    table = make(num_blocks=7)
    table.release([prefill(table, PROMPT)])
    ids = [admit(table, prompt)[0] for prompt in ([*PROMPT[:6], *range(10)], [*PROMPT[:10], 7])]
    assert table.stats().free == 0
    for a, b in (([0], []), ([1, 2], [7]), ([3], []), ([4, 5, 6, 7, 8, 9], [])):
        assert table.can_extend(ids, [len(a), len(b)])
        feed(table, ids, [a, b])
    assert table.stats().used == 6


def test_beyond_the_prompt_blocks_are_counted_with_the_copy(make):
    table = make(num_blocks=6)
    table.release([prefill(table, PROMPT)])
    sid, _ = admit(table, PROMPT)
    assert table.stats().free == 1
    assert table.can_extend([sid], 5) and not table.can_extend([sid], 6)
    before = snapshot(table, sid)
    with pytest.raises(OutOfBlocks, match="needs 2 blocks, 1 "):
        table.extend([sid], 6)
    assert snapshot(table, sid) == before
    step = table.extend([sid], 5)
    assert len(step.copies) == 1 and len(step.new_blocks) == 1 and table.stats().free == 0
    table.abandon(step)
    assert snapshot(table, sid)[1:] == before[1:]


@pytest.mark.parametrize(
    ("blocks", "reserve", "expected"),
    [(6, 0, (0, 15)), (5, 0, (0, 15)), (4, 0, (0, 12)), (5, 4, (0, 12)), (6, 4, (0, 15)), (6, 8, (1, 0))],
)
def test_one_block_short_it_does_with_whole_blocks(make, blocks, reserve, expected):
    """Four blocks are cached; the copy of the last one's head needs a fifth."""
    table = make(num_blocks=blocks, max_length=99)
    table.release([prefill(table, PROMPT)])
    if reserve == 8:
        table.admit([[1]])
    admission = table.admit([PROMPT], reserve=reserve)
    assert (admission.status[0], admission.cached[0]) == expected
    assert table.stats().hit_tokens == expected[1]


def test_a_shared_block_that_somebody_holds_costs_nothing_more(make):
    table = make(num_blocks=5)
    prefill(table, PROMPT)
    assert table.match([PROMPT])[0] == admit(table, PROMPT)[1] == 15 and table.stats().free == 0


def test_match_says_what_admit_does_when_blocks_are_short(make):
    for held in range(7):
        table = make(num_blocks=10)
        table.release([prefill(table, PROMPT)])
        table.admit([[]], reserve=4 * held)
        assert table.match([PROMPT])[0] == table.admit([PROMPT]).cached[0] == (15 if held < 6 else 12)


def test_a_random_prompt_finds_what_a_search_finds():
    """Against all blocks that were ever published, in a pool that keeps them."""
    rng = np.random.default_rng(0)
    table = SequenceTable(BlockPool(4000), 5, max_sequences=4)
    known = set()
    for _ in range(300):
        prompt = rng.choice(3, rng.integers(1, 24), p=[0.8, 0.1, 0.1]).tolist()
        heads = {one[:n] for one in known for n in range(len(one) - 4, len(one) + 1)}  # of blocks, the whole ones too
        expected = max((n for n in range(1, len(prompt)) if tuple(prompt[:n]) in heads), default=0)
        sid, found = admit(table, prompt)
        assert expected // 5 * 5 <= found <= expected, "of many blocks after the same one, not all are looked at"
        assert found == expected or len({one for one in known if len(one) == expected // 5 * 5 + 5}) > 16
        feed(table, [sid], [prompt[found:]])
        known |= {tuple(prompt[:n]) for n in range(5, len(prompt) + 1, 5)}
        table.release([sid])
    table.check()
