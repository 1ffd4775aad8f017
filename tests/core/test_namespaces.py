"""Namespaces, keys and secrets in the verbs: nothing crosses. DESIGN 4.2, 4.17; what makes keys is test_keys.py's."""

import itertools

import pytest
from drive import feed, least_growth, prefill, snapshot
from hypothesis import given
from hypothesis import strategies as st

from pagedcache import Key, Namespace, adapter, content, salt
from pagedcache.core import BlockPool, SequenceTable

SECRET, OTHER = b"0123456789abcdef", b"fedcba9876543210"
DIFFERENT = {
    "nothing": {},
    "namespace a": {"namespace": "a"},
    "namespace A": {"namespace": "A"},
    "namespace ab": {"namespace": "ab"},
    "salt a": {"keys": [[salt("a")]]},
    "adapter a": {"keys": [[adapter("a")]]},
    "kind of its own": {"keys": [[Key("tools", "a")]]},
    "both": {"namespace": "a", "keys": [[salt("a")]]},
    "two keys": {"keys": [[salt("a"), adapter("a")]]},
    "salt later": {"keys": [[salt("a", 2)]]},
    "image": {"keys": [[content("a", 0, 2)]]},
    "longer image": {"keys": [[content("a", 0, 3)]]},
    "image one on": {"keys": [[content("a", 1, 3)]]},
    "image over a border": {"keys": [[content("a", 0, 6)]]},
    "sound": {"keys": [[content("a", 0, 2, kind="sound")]]},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_no_hit_crosses(name):
    """In admit, match and pin, whichever of the others was there first."""
    table = SequenceTable(BlockPool(100), 4)
    for other in DIFFERENT:
        if other != name:
            prefill(table, [1] * 9, **DIFFERENT[other])
    options = DIFFERENT[name]
    assert table.match([[1] * 9], **options)[0] == 0
    assert table.pin([[1] * 9], "none", **options) == 0
    prefill(table, [1] * 9, **options)
    assert table.match([[1] * 9], **options)[0] == 8
    assert table.pin([[1] * 9], "found", **options) == 2
    assert table.admit([[1] * 9], **options).cached[0] == 8
    table.check()


def test_names_are_their_bytes(make):
    table = make()
    prefill(table, [1] * 9, namespace="ä")
    for same in ("ä".encode(), Namespace("ä"), Namespace("ä".encode())):
        assert table.match([[1] * 9], namespace=same)[0] == 8


def test_what_lies_before_a_key_is_everybodys(make):
    table = make()
    prefill(table, [1] * 13, keys=[[salt("mine", 9)]])
    assert table.match([[1] * 13])[0] == 8
    assert table.match([[1] * 13], keys=[[salt("theirs", 9)]])[0] == 8
    assert table.match([[1] * 13], keys=[[salt("mine", 9)]])[0] == 12
    assert table.match([[1] * 13], keys=[[salt("mine", 5)]])[0] == 4


def test_each_prompt_of_a_call_has_its_own_keys(make):
    table = make()
    keys = [[salt("a")], None, [], [content("cat", 5, 7)]]
    ids = table.admit([[1] * 9] * 4, keys=keys).ids
    for sid in ids.tolist():
        feed(table, [sid], [[1] * 9])
    assert table.match([[1] * 9] * 4, keys=keys).tolist() == [8] * 4
    assert table.stats().published == 2 + 2 + 1, "the image's first block is the plain one"


def test_a_key_behind_the_prompt_is_about_what_is_generated(make):
    table = make()
    [sid] = table.admit([[1] * 4], keys=[[adapter("a", 4)]]).ids
    feed(table, [sid], [[1] * 4 + [2] * 4])
    assert table.match([[1] * 4 + [2] * 5])[0] == 4
    assert table.match([[1] * 4 + [2] * 5], keys=[[adapter("a", 4)]])[0] == 8


@pytest.mark.parametrize("at", [8, 9, 12])
def test_forks_keep_keys(make, at):
    table = make()
    keys = [[salt("a", 6)]]
    sid = prefill(table, [1] * 12, keys=keys)
    [[kid]] = table.fork([sid], at=at)
    table.release([sid])
    feed(table, [kid], [[2] * 8])
    prompt = [1] * at + [2] * 8 + [0]
    assert table.match([prompt], keys=keys)[0] == (at + 8) // 4 * 4
    assert table.match([prompt])[0] == 4


@pytest.mark.parametrize("verb", ["fork", "truncate"])
@pytest.mark.parametrize(("at", "publishes"), [(12, True), (10, True), (9, False), (6, False), (5, False)])
def test_a_row_cut_within_an_image_publishes_no_more(make, verb, at, publishes):
    """What is left of the image has no key that describes it."""
    table = make()
    keys = [[content("cat", 5, 10)]]
    sid = prefill(table, [1] * 12, keys=keys)
    if verb == "fork":
        [[sid]] = table.fork([sid], at=at)
    else:
        table.truncate([sid], at)
    assert (feed(table, [sid], [[2] * 8]) > 0) == publishes
    prompt = [1] * at + [2] * 8 + [0]
    if publishes:
        assert table.match([prompt], keys=keys)[0] == (at + 8) // 4 * 4
    assert table.match([prompt])[0] == 4, "the image's blocks are found with its key only"
    assert table.match([[1] * 12 + [0]], keys=keys)[0] == 12


def test_a_wrong_secret_is_refused_everywhere_and_changes_nothing(make):
    table = make()
    sid = prefill(table, [1] * 9, namespace=Namespace("a", secret=SECRET))
    before = snapshot(table, sid)
    for wrong in ("a", Namespace("a", secret=OTHER)):
        for call in (
            lambda wrong=wrong: table.admit([[2], [1] * 9], namespace=wrong),
            lambda wrong=wrong: table.match([[1] * 9], namespace=wrong),
            lambda wrong=wrong: table.pin([[1] * 9], "x", namespace=wrong),
        ):
            with pytest.raises(ValueError, match="secret") as refused:
                call()
            assert SECRET.decode() not in str(refused.value) and OTHER.decode() not in str(refused.value)
    assert snapshot(table, sid) == before and table.num_pinned == 0
    assert table.match([[1] * 9], namespace=Namespace("a", secret=SECRET))[0] == 8


@pytest.mark.parametrize("first", [None, [salt("s")], [content("cat", 0, 2)]])
@pytest.mark.parametrize("then", [None, [salt("s")], [salt("t")]])
def test_a_namespace_has_one_secret_whatever_else_begins_in_its_first_block(make, first, then):
    table = make()
    ours, other = Namespace("a", secret=SECRET), Namespace("a", secret=OTHER)
    sid = prefill(table, [1] * 9, namespace=ours, keys=[first])
    with pytest.raises(ValueError, match="another secret"):
        table.admit([[1] * 9], namespace=other, keys=[then])
    table.release([sid])
    with pytest.raises(ValueError, match="another secret"):
        table.match([[1] * 9], namespace=other, keys=[then])
    table.invalidate(namespace="a")
    prefill(table, [1] * 9, namespace=other, keys=[then])
    with pytest.raises(ValueError, match="another secret"):
        table.admit([[1] * 9], namespace=ours, keys=[first])
    table.check()


def test_a_secret_needs_a_name(make):
    table = make()
    for name in ("", b""):
        with pytest.raises(ValueError, match="name"):
            table.admit([[1]], namespace=Namespace(name, secret=SECRET))


def test_a_new_secret_after_the_old_ones_content_is_gone(make):
    """What the error says to do helps."""
    table = make()
    sid = prefill(table, [1] * 9, namespace=Namespace("a", secret=SECRET))
    table.invalidate(namespace="a")
    table.release([sid])
    prefill(table, [1] * 9, namespace=Namespace("a", secret=OTHER))
    assert table.match([[1] * 9], namespace=Namespace("a", secret=OTHER))[0] == 8


def test_one_namespaces_secret_is_nothing_to_another(make):
    table = make()
    prefill(table, [1] * 9, namespace=Namespace("a", secret=SECRET), keys=[[content("cat", 4, 6)]])
    sid = prefill(table, [1] * 9, keys=[[content("cat", 0, 2)]])
    assert feed(table, [sid], [[1] * 3]) == 1


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [None, None],
        [[5]],
        [["salt"]],
        [salt("a")],
        [[salt("a"), salt("b")]],
        [[salt("a", 10)]],
        [[content("a", 8, 10)]],
        [[content("a", 0, 4), content("b", 3, 5)]],
        5,
        "a",
    ],
)
@pytest.mark.parametrize("verb", ["admit", "match", "pin"])
def test_keys_that_contradict_the_prompt_or_each_other(make, verb, keys):
    table = make()
    sid = prefill(table, [1] * 9)
    before = snapshot(table, sid)
    with pytest.raises((TypeError, ValueError)):
        getattr(table, verb)([[1] * 9], *(["x"] if verb == "pin" else []), keys=keys)
    assert snapshot(table, sid) == before and table.num_pinned == 0


@pytest.mark.thread_unsafe  # tracemalloc counts every thread's memory
def test_keys_that_come_and_go_leave_nothing_behind():
    """Numbers are taken back: by looks, by sequences, by blocks and by pins. tracemalloc sees the tables of keys."""
    table = SequenceTable(BlockPool(16), 4)

    def visit(first, last):
        for k in range(first, last):
            name = f"tenant-{k}"
            table.match([[1] * 9], namespace=f"look-{k}")
            sid = prefill(table, [1] * 9, namespace=name, keys=[[salt(name, 5)]])
            table.release([sid, *table.fork([sid])[0].tolist()])
            if k % 3 == 0:
                table.pin([[1] * 9], name, namespace=name, keys=[[salt(name, 5)]])
                table.unpin(name)

    visit(0, 100)
    size, tenants = table.nbytes, itertools.count(100, 200)

    def visit_more():
        first = next(tenants)
        visit(first, first + 200)

    assert least_growth(visit_more) < 200 * 50, "two hundred tenants of three keys would take some 100 kB"
    assert table.nbytes == size
    table.check()


KEYS = st.lists(
    st.tuples(st.sampled_from(["salt", "adapter"]), st.sampled_from("xy"), st.integers(0, 9)), max_size=3
).map(lambda drawn: list({(kind, start): Key(kind, value, start) for kind, value, start in drawn}.values()))


@given(prompts=st.lists(st.tuples(st.sampled_from([None, "n", "m"]), KEYS, st.integers(1, 14)), max_size=8))
def test_matches_agree_with_a_set_of_keyed_prefixes(prompts):
    """A block, or its head, is found exactly where every token and every key up to its end is the same."""
    table, known = SequenceTable(BlockPool(100), 3), set()

    def prefixes(name, keys, length):
        for end in range(3, length + 1, 3):
            parts = frozenset((k.kind, k.value, k.start) for k in keys if k.start < end)
            yield name, parts, end

    for name, keys, length in prompts:
        keys = [key for key in keys if key.start <= length]
        expected = 0
        for prefix in prefixes(name, keys, length + 1):
            if prefix not in known:
                break
            expected = min(prefix[2], length - 1)
        assert table.match([[7] * length], namespace=name, keys=[keys])[0] == expected
        prefill(table, [7] * length, namespace=name, keys=[keys])
        known |= set(prefixes(name, keys, length))
        assert table.stats().published == len(known)
    table.check()
