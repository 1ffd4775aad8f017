"""Namespaces, adapters, salts and content keys: what they are framed to, and what is refused. Contracts 2, 17, 18."""

import copy
import itertools
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pagedcache.keys
from pagedcache.keys import BlockKey, Key, Namespace, Part, adapter, block_keys, content, frame, salt


def unframed(data):
    """The parts in framed bytes, read by the rule in the docs."""
    parts = []
    while data:
        kind, offset, extent, value = struct.unpack("<HIII", data[:14])
        assert len(data) >= 14 + kind + value
        parts.append(Part(data[14 : 14 + kind].decode(), offset, extent, data[14 + kind : 14 + kind + value]))
        data = data[14 + kind + value :]
    return parts


def identities(tokens, keys, namespace=None, block_size=4):
    """What the prefix index compares, block by block: everything up to and including that block."""
    framed = {key.block: key.frame for key in block_keys(namespace, keys, block_size, len(tokens))}
    blocks = [
        (tuple(tokens[i : i + block_size]), framed.get(i // block_size, b"")) for i in range(0, len(tokens), block_size)
    ]
    return [tuple(blocks[: i + 1]) for i in range(len(blocks))]


def shared_blocks(*prompts):
    """Leading blocks that are the same in all prompts."""
    same = [len(set(column)) == 1 for column in zip(*(identities(**prompt) for prompt in prompts), strict=True)]
    return len(list(itertools.takewhile(bool, same)))


# -- framing ----------------------------------------------------------------------------------------

small = st.integers(0, 3)
parts = st.builds(Part, st.sampled_from(["a", "b", "ab", "é"]), small, small, st.binary(min_size=1, max_size=20))
part_sets = st.sets(parts, max_size=4)


@given(part_sets)
def test_a_frame_can_be_taken_apart(some):
    assert unframed(frame(some)) == pagedcache.keys.parts(frame(some)) == sorted(some)


@given(part_sets, part_sets)
def test_different_parts_have_different_frames(some, others):
    assert (frame(some) == frame(others)) == (some == others)


@given(st.lists(parts, unique=True, max_size=4), st.randoms())
def test_the_order_of_parts_does_not_matter(some, random):
    shuffled = random.sample(some, len(some))
    assert frame(shuffled) == frame(some)


key_lists = st.lists(
    st.one_of(
        st.builds(salt, st.sampled_from(["a", "b"]), st.integers(0, 9)),
        st.builds(adapter, st.sampled_from(["a", "b"]), st.integers(0, 9)),
        st.builds(lambda start: content("cat", start, start + 2), st.integers(0, 4)),
    ),
    max_size=3,
    unique_by=lambda key: "range" if key.stop else (key.kind, key.start),
)


@given(key_lists, key_lists, st.sampled_from([None, "n"]), st.integers(1, 5))
def test_different_keys_have_different_entries(some, others, namespace, block_size):
    ours, theirs = (block_keys(namespace, keys, block_size, 9) for keys in (some, others))
    assert (ours == theirs) == (set(some) == set(others))
    assert ([key[:2] for key in ours] == [key[:2] for key in theirs]) == (set(some) == set(others))


def test_a_value_cannot_look_like_two_parts():
    one, two = Part("a", 0, 0, b"x"), Part("b", 1, 2, b"y")
    forged = Part("a", 0, 0, b"x" + frame([two]))
    assert frame([forged]) != frame([one, two])


def test_frames_are_the_bytes_of_the_docs():
    expected = b"\x05\x00\x01\x00\x00\x00\x06\x00\x00\x00\x03\x00\x00\x00imagecat"
    assert frame([Part("image", 1, 6, b"cat")]) == expected


# -- which block a key enters -----------------------------------------------------------------------


def test_a_key_enters_the_block_of_its_first_position_only():
    (entry,) = block_keys(None, [content("cat", 5, 14)], 4, 16)
    assert entry == BlockKey(1, frame([Part("image", 1, 9, b"cat")]), 5, 14)


def test_parts_of_one_block_share_an_entry():
    keys = [salt("s", 6), content("cat", 4, 6), content("hum", 7, 9, "audio"), adapter("lora")]
    first, second = block_keys("tenant", keys, 4, 12)
    assert unframed(first.frame) == [Part("adapter", 0, 0, b"lora"), Part("namespace", 0, 0, b"tenant")]
    assert sorted(part.kind for part in unframed(second.frame)) == ["audio", "image", "salt"]


def test_nothing_given_means_no_entry():
    assert block_keys(None, None, 4, 8) == block_keys("", [], 4, 8) == block_keys(b"", (), 4, 0) == []


def test_w05_two_images_behind_equal_placeholders_are_not_shared():
    """W05: 12 tokens, placeholder 7 at 4..9; the same image one position later is another prompt too."""
    tokens = [1, 2, 3, 4, *[7] * 6, 5, 6]
    cat, dog, moved = (
        {"tokens": tokens, "keys": [content(name, start, start + 6)]}
        for name, start in (("imgA", 4), ("imgB", 4), ("imgA", 5))
    )
    assert shared_blocks(cat, cat) == 3
    assert shared_blocks(cat, dog) == shared_blocks(cat, moved) == shared_blocks(dog, moved) == 1


def test_w05_an_image_one_block_later_is_not_shared():
    tokens = [7] * 12
    here, there = ({"tokens": tokens, "keys": [content("imgA", start, start + 4)]} for start in (0, 4))
    assert shared_blocks(here, there) == 0


def test_r08_a_salt_leaves_the_blocks_before_it_shared():
    tokens = list(range(16))
    plain = {"tokens": tokens, "keys": None}
    for start, shared in ((0, 0), (1, 0), (4, 1), (7, 1), (8, 2)):
        ours, theirs = ({"tokens": tokens, "keys": [salt(value, start)]} for value in ("ours", "theirs"))
        assert shared_blocks(ours, theirs) == shared_blocks(ours, plain) == shared
        assert shared_blocks(ours, ours) == 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([adapter("x")], [salt("x")]),
        ([adapter("x")], [adapter("x", 1)]),
        ([adapter("x")], [adapter("y")]),
        ([adapter("xy")], [adapter("x"), salt("y")]),
        ([content("x", 0, 2)], [content("x", 0, 3)]),
        ([content("x", 0, 2)], [content("x", 0, 2, kind="audio")]),
        ([content("x", 0, 2)], [Key("image", "x")]),
        ([salt("a"), salt("b", 1)], [salt("b"), salt("a", 1)]),
    ],
)
def test_prompts_with_different_keys_share_nothing(one, other):
    tokens = [1, 2, 3, 4]
    assert shared_blocks({"tokens": tokens, "keys": one}, {"tokens": tokens, "keys": other}) == 0


def test_the_order_of_keys_does_not_matter():
    keys = [adapter("a"), salt("s", 2), content("cat", 3, 6), content("dog", 6, 9)]
    expected = block_keys("n", keys, 4, 12)
    assert all(block_keys("n", list(order), 4, 12) == expected for order in itertools.permutations(keys))


def test_w40_blocks_of_another_size_have_keys_of_their_own():
    """W40: offsets follow the block size of the group that asks."""
    keys = [content("cat", 6, 9)]
    assert [unframed(block_keys(None, keys, size, 20)[0].frame)[0].offset for size in (4, 8)] == [2, 6]
    assert [block_keys(None, keys, size, 20)[0].block for size in (4, 8)] == [1, 0]


# -- cuts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("namespace", "keys", "span"),
    [
        (None, [content("cat", 1, 6)], (1, 6)),
        (None, [content("cat", 0, 2), content("dog", 3, 9)], (0, 9)),
        (None, [salt("s", 2)], (-1, 2)),
        (None, [salt("s", 2), content("cat", 1, 6)], (-1, 6)),
        ("tenant", None, (-1, 0)),
        ("tenant", [content("cat", 1, 6)], (-1, 6)),
    ],
)
def test_an_entry_says_which_cuts_it_survives(namespace, keys, span):
    (entry,) = block_keys(namespace, keys, 4, 12)
    assert (entry.start, entry.stop) == span


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9), st.booleans(), st.integers(0, 12))
def test_a_cut_that_leaves_an_entry_leaves_what_it_describes(salted, start, extent, namespaced, cut):
    """At `stop` and beyond nothing changes; at `start` and before only keys with an end were there, and are gone."""
    keys = [salt("s", salted), content("cat", start, min(12, start + extent))]
    before = block_keys("n" if namespaced else None, keys, 4, 12)
    whole = [key for key in keys if (key.start if key.stop is None else key.stop) <= cut]
    after = {entry.block: entry for entry in block_keys("n" if namespaced else None, whole, 4, cut)}
    for entry in before:
        if cut >= entry.stop:
            assert after[entry.block].frame == entry.frame
        elif cut <= entry.start:
            assert entry.block not in after and entry.block != salted // 4


# -- namespaces -------------------------------------------------------------------------------------


def test_a_namespace_is_a_border():
    """Contract 17, in what the index compares."""
    prompts = [{"tokens": [1, 2, 3, 4], "keys": None, "namespace": name} for name in (None, "a", "b", "ab")]
    assert all(shared_blocks(*pair) == 0 for pair in itertools.combinations(prompts, 2))


def test_a_namespace_is_its_utf8_bytes():
    names = ["tenant-ü", "tenant-ü".encode(), Namespace("tenant-ü"), Namespace("tenant-ü", b"s" * 32)]
    assert len({frozenset(block_keys(name, None, 4, 8)) for name in names}) == 1


def test_no_key_can_pass_for_a_namespace():
    with pytest.raises(ValueError, match="reserved"):
        Key("namespace", "a")
    assert block_keys(None, [Key("namespaces", "a")], 4, 4) != block_keys("a", None, 4, 4)


@pytest.mark.parametrize("wrong", [0, 7, False, [], 1.5, ["a"], bytearray(b"a")])
def test_a_namespace_of_another_type_is_refused(wrong):
    """A falsy tenant id must not mean the namespace of everybody."""
    with pytest.raises(TypeError, match="namespace must be bytes or str"):
        block_keys(wrong, None, 4, 4)


def test_secrets_and_salts_are_in_no_repr():
    assert "hunter2" not in f"{Namespace('a', b'hunter2' * 4)!r} {salt('hunter2')!r} {content('hunter2', 0, 1)}"


@pytest.mark.parametrize(
    ("secret", "error"), [("s" * 32, TypeError), (b"short", ValueError), (b"", ValueError), (b"s" * 1025, ValueError)]
)
def test_weak_secrets_are_refused(secret, error):
    with pytest.raises(error, match="secret"):
        Namespace("a", secret)


# -- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("", "v"), ValueError, "kind has 0 bytes"),
        (("k" * 65, "v"), ValueError, "kind has 65 bytes; it must have 1 to 64"),
        ((b"k", "v"), TypeError, "kind must be a str"),
        (("k", ""), ValueError, "the value of 'k' has 0 bytes"),
        (("k", b"v" * 1025), ValueError, "1025 bytes; it must have 1 to 1024; hand in a digest"),
        (("k", "é" * 513), ValueError, "1026 bytes"),
        (("k", 7), TypeError, "the value of 'k' must be bytes or str, not int"),
        (("k", None), TypeError, "not NoneType"),
        (("k", "\ud800"), ValueError, "lone surrogate"),
        (("k", "v", -1), ValueError, "start is -1; it must be 0 to 2147483647"),
        (("k", "v", 1.0), TypeError, "start must be an int, not float"),
        (("k", "v", True), TypeError, "start must be an int, not bool"),
        (("k", "v", 2**31), ValueError, "start is 2147483648"),
        (("k", "v", 4, 4), ValueError, "covers nothing: start is 4, stop is 4"),
        (("k", "v", 4, 3), ValueError, "covers nothing"),
        (("k", "v", 4, "5"), TypeError, "stop must be an int"),
    ],
)
def test_wrong_keys_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Key(*arguments)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ([content("cat", 4, 13)], ValueError, "stop=13.* goes beyond its prompt of 12 tokens"),
        ([salt("s", 13)], ValueError, "beyond its prompt of 12"),
        ([content("cat", 4, 8), content("dog", 7, 9)], ValueError, "overlap"),
        ([content("cat", 0, 9), content("dog", 2, 4, "audio")], ValueError, "overlap"),
        ([content("cat", 0, 9), salt("s", 3), content("dog", 8, 9)], ValueError, "overlap"),
        ([salt("a", 3), salt("b", 3)], ValueError, "two keys 'salt' start at 3"),
        ([salt("a"), salt("a")], ValueError, "two keys 'salt' start at 0"),
        (salt("a"), TypeError, "must be a list of Key, not Key"),
        ("adapter", TypeError, "must be Key, not str"),
        ([("salt", "a")], TypeError, "must be Key, not tuple"),
        ([None], TypeError, "must be Key, not NoneType"),
        ({salt("a")}, TypeError, "must be a list of Key, not set"),
    ],
)
def test_keys_that_contradict_their_prompt_are_refused(keys, error, message):
    with pytest.raises(error, match=message):
        block_keys(None, keys, 4, 12)


def test_keys_may_touch_and_a_salt_may_start_behind_the_prompt():
    keys = [content("cat", 4, 8), content("dog", 8, 12), salt("s", 12)]
    assert [entry.block for entry in block_keys(None, keys, 4, 12)] == [1, 2, 3]


def test_numpy_positions_are_positions():
    assert content("cat", np.int64(4), np.int32(8)) == content("cat", 4, 8)
    assert type(content("cat", np.int64(4), np.int32(8)).stop) is int


def test_keys_are_values():
    key = content("cat", 4, 8)
    assert key == copy.deepcopy(key) == pickle.loads(pickle.dumps(key)) and len({key, copy.copy(key)}) == 1
    with pytest.raises(AttributeError):
        key.start = 0
