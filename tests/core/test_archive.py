"""contents, published, published_blocks, admit_swapped, publish: sequences and prefixes told, and made again."""

import pytest
from drive import blocks_of, feed, prefill, snapshot

from pagedcache import Namespace, content, salt
from pagedcache.errors import InvalidSequence, OutOfBlocks, OutOfSequences, StepOpen, SwappedOut

PROMPT = list(range(100, 117))  # four full blocks of four, and a token
SIDES = {"side_groups": [(6, 2, False)], "max_step_tokens": 4}


# ---- telling


def test_contents_of_a_sequence(make):
    table = make()
    keys = [salt("t7", 10), content("cat", 5, 10)]
    ours = Namespace("ours", secret=b"at least 16 bytes")
    sid = prefill(table, PROMPT, namespace=ours, keys=[keys])
    told = table.contents(sid)
    assert told.tokens.tolist() == PROMPT and (told.position, told.pad, told.priority, told.settled) == (17, 0, 0, 10)
    assert (told.namespace, told.namespace.secret) == (ours, ours.secret)
    assert sorted(told.keys, key=str) == sorted(keys, key=str)


def test_contents_of_one_without_anything(make):
    table = make()
    [sid] = table.admit([[]]).ids
    assert table.contents(sid)[1:] == (0, 0, 0, Namespace(), [], 0) and len(table.contents(sid).tokens) == 0


@pytest.mark.parametrize("known", [True, False])
def test_tokens_are_told_only_where_all_are_known(make, known):
    table = make()
    [padded] = table.admit([[1, 2, 3]], pads=[2]).ids
    [sid] = table.admit([[1, 2, 3]]).ids
    feed(table, [padded, sid], [[1, 2, 3], [1, 2, 3]], known=known)
    feed(table, [sid], [[4]])
    assert table.contents(padded).tokens is None and table.contents(padded)[1:3] == (5, 2)
    assert (table.contents(sid).tokens is not None) == known


def test_contents_refuses_what_is_not_at_rest(make):
    table = make()
    a, b = prefill(table, PROMPT), prefill(table, [1, 2, 3])
    step = table.extend([a], [1])
    table.swap_out([b])
    for handle, error in ((a, StepOpen), (b, SwappedOut), (a + 99, InvalidSequence)):
        with pytest.raises(error):
            table.contents(handle)
    table.abandon(step)


def test_published_tells_parents_first(make):
    table = make(num_blocks=20)
    other = [*PROMPT[:8], *range(50, 59)]
    rows = [prefill(table, PROMPT), prefill(table, other), prefill(table, PROMPT, namespace="n", keys=[[salt("x", 6)]])]
    told = table.published()
    assert len(told.blocks) == table.stats().published == 10
    assert all(parent < entry for entry, parent in enumerate(told.parents.tolist()))
    leaves = [told.path(entry) for entry in set(range(10)) - set(told.parents.tolist())]
    assert sorted(told.blocks[path, 0].tolist() for path in leaves) == sorted(blocks_of(table, row)[:4] for row in rows)
    found = {(told.border(path).name, str(told.keys(path)), str(told.tokens[path].ravel().tolist())) for path in leaves}
    assert found == {
        (b"", "[]", str(PROMPT[:16])),
        (b"", "[]", str(other[:16])),
        (b"n", str([salt("x", 6)]), str(PROMPT[:16])),
    }


def test_published_of_nothing(make):
    assert [len(part) for part in make().published()][:4] == [0, 0, 0, 0]


def test_published_blocks_of_a_prompt(make):
    table = make()
    sid = prefill(table, PROMPT, namespace="n")
    assert table.published_blocks(PROMPT, namespace="n")[:, 0].tolist() == blocks_of(table, sid)[:4]
    assert len(table.published_blocks(PROMPT)) == 0
    assert len(table.published_blocks([*PROMPT[:9], 1, 2, 3], namespace="n")) == 2


def test_published_blocks_have_companions(make):
    table = make(num_blocks=40, **SIDES)
    [sid] = table.admit([PROMPT]).ids
    for begin in range(0, 17, 4):
        feed(table, [sid], [PROMPT[begin : begin + 4]])
    found = table.published_blocks(PROMPT)
    assert found[:, 0].tolist() == blocks_of(table, sid)[:4]
    own = table.block_table(sid, 1)[:4]
    assert (found[own > 0, 1] == own[own > 0]).all() and (own == 0).any() and (found[:, 1] > 0).all()


# ---- making


def test_a_sequence_from_elsewhere(make):
    table = make()
    sid = table.admit_swapped(17, PROMPT)
    with pytest.raises(SwappedOut):
        table.extend([sid], [1])
    blocks = table.begin_swap_in([sid])
    assert len(blocks) == 5 and table.match([PROMPT])[0] == 0
    table.swap_in([sid])
    assert blocks_of(table, sid) == blocks.tolist() and table.contents(sid).tokens.tolist() == PROMPT
    assert table.match([PROMPT])[0] == 0  # its bytes may still be on their way
    table.publish([sid])
    assert table.match([PROMPT])[0] == 16
    feed(table, [sid], [[117, 118, 119]])
    assert table.match([[*PROMPT, 117, 118, 119, 0]])[0] == 20


def test_it_shares_what_is_published(make):
    table = make()
    first = prefill(table, PROMPT)
    sid = table.admit_swapped(17, PROMPT)
    assert len(table.begin_swap_in([sid])) == 1
    table.swap_in([sid])
    assert blocks_of(table, sid)[:4] == blocks_of(table, first)[:4]
    table.publish([sid])
    assert table.release([first]) == 1


@pytest.mark.parametrize("pad", [0, 5])
def test_one_whose_tokens_are_not_known_publishes_nothing(make, pad):
    table = make()
    prefill(table, [0] * 17)
    sid = table.admit_swapped(17, None, pad=pad)
    assert len(table.begin_swap_in([sid])) == 5
    table.swap_in([sid])
    before = table.stats().published
    table.publish([sid])
    feed(table, [sid], [[1, 2, 3]])
    assert table.stats().published == before and table.contents(sid)[:3] == (None, 20, pad)


def test_what_is_anothers_is_shared_with_it(make):
    table = make()
    first = table.admit_swapped(17, None, pad=2)
    table.begin_swap_in([first])
    table.swap_in([first])
    second = table.admit_swapped(15, None, pad=2, like=first, shared=3)
    assert len(table.begin_swap_in([second])) == 1
    table.swap_in([second])
    assert blocks_of(table, second)[:3] == blocks_of(table, first)[:3] and table.stats().used == 6
    feed(table, [second], [[1, 2]])
    table.release([first])
    before = snapshot(table, second)
    for options in ({"shared": 7}, {"shared": 6, "like": second}, {"shared": 1}, {"like": second, "pad": 1}):
        with pytest.raises(ValueError, match=r"shared is|pad is"):
            table.admit_swapped(24, None, **({"pad": 2} | options))
    with pytest.raises(ValueError, match="none whose tokens are known"):
        table.admit_swapped(17, PROMPT, like=second, shared=1)
    with pytest.raises(InvalidSequence):
        table.admit_swapped(17, None, like=first)
    assert snapshot(table, second) == before


def test_windows_have_what_they_show(make):
    table = make(num_blocks=40, **SIDES)
    sid = table.admit_swapped(17, PROMPT)
    blocks = table.begin_swap_in([sid])
    table.swap_in([sid])
    side = table.block_table(sid, 1).tolist()
    assert [block > 0 for block in side] == [True, False, False, True, True]  # 2 sinks; 6 tokens before position 17
    assert len(blocks) == 5 + 3
    table.publish([sid])
    assert table.published_blocks(PROMPT)[:, 1].tolist() == [side[0], 0, 0, side[3]]
    assert table.match([[*PROMPT[:16], 1]])[0] == 4  # at 16 a query sees back to 11, in a block that is not there
    feed(table, [sid], [[1, 2, 3]])
    assert table.match([[*PROMPT, 1, 2, 3, 4]])[0] == 20


def test_refusals_change_nothing(make):
    table = make(num_blocks=6, max_sequences=2, max_length=20)
    prefill(table, PROMPT)
    before = snapshot(table)
    for position, tokens, options in (
        (21, None, {}), (17, PROMPT[:16], {}), (17, PROMPT, {"pad": 1}), (3, None, {"pad": 4}), (2, [1, -1], {}),
        (17, PROMPT, {"priority": 1}), (17, PROMPT, {"keys": [salt("x", 18)]}),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            table.admit_swapped(position, tokens, **options)
    other = table.admit_swapped(9, range(9))
    with pytest.raises(OutOfSequences):
        table.admit_swapped(0, [])
    with pytest.raises(OutOfBlocks):
        table.begin_swap_in([other])
    table.release([other])
    assert snapshot(table) == before
