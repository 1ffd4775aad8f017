"""Portable names of blocks: the vectors of the docs, and what they depend on. Contracts 16 and 17."""

import hashlib
import hmac
import os
import re
import struct
import subprocess
import sys

import numpy as np
import pytest

from pagedcache import digests
from pagedcache.digests import DIGEST_SIZE, block_digest, prompt_digests, root_digest
from pagedcache.keys import Namespace, Part, adapter, content, frame, salt

SECRET = bytes(range(32))
KEYS = [adapter("lora-1"), content(b"\x00\xff", 5, 8), salt("tenant", 6)]
VECTORS = {  # name -> arguments, last digest
    "plain": (
        {"tokens": [1, 2, 3, 4, 5, 6, 7, 8], "block_size": 4},
        "12b0076965abb700f9604ca91b5e0c11dcc1bb02bb51a0dbc1e356a3b15a4762",
    ),
    "all": (
        {
            "tokens": [0, 2**31 - 1, 3, 4, 5, 6, 7, 8],
            "block_size": 4,
            "namespace": "tenant-ü",
            "keys": KEYS,
            "fingerprint": b"model",
        },
        "fc4654b516cb52969762bff8a3b34d91c25d3cfb6de17e146003ea491364f123",
    ),
    "secret": (
        {"tokens": [1, 2, 3, 4, 5, 6, 7, 8], "block_size": 4, "namespace": Namespace("tenant-ü", SECRET)},
        "c575e4e966b63e41b63ee0dfa06fbf3c36cda4817238d44edd8e5198f8b820a7",
    ),
}


def last(name):
    arguments, _ = VECTORS[name]
    return prompt_digests(**arguments)[-1].hex()


def spelt_out(tokens, fingerprint=b"", frames=(b"", b""), keyed=lambda message: hashlib.sha256(message).digest()):
    """The digest of the second of two blocks of four, by the rule in the docs, without the library."""
    digest = keyed(b"pagedcache.root.v1" + struct.pack("<II", 4, len(fingerprint)) + fingerprint)
    for block, key in zip((tokens[:4], tokens[4:]), frames, strict=True):
        sizes = struct.pack("<II", 4, len(key))
        digest = keyed(b"pagedcache.block.v1" + digest + sizes + key + struct.pack("<4i", *block))
    return digest.hex()


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name):
    assert last(name) == VECTORS[name][1]


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_are_in_the_docs(name, checkout):
    page = (checkout / "docs" / "prefix-keys.md").read_text(encoding="utf-8")
    assert VECTORS[name][1] in re.sub(r"\s", "", page)


def test_digests_follow_the_rule_in_the_docs():
    assert last("plain") == spelt_out([1, 2, 3, 4, 5, 6, 7, 8])
    first = frame([Part("namespace", 0, 0, "tenant-ü".encode()), Part("adapter", 0, 0, b"lora-1")])
    second = frame([Part("image", 1, 3, b"\x00\xff"), Part("salt", 2, 0, b"tenant")])
    assert last("all") == spelt_out([0, 2**31 - 1, 3, 4, 5, 6, 7, 8], b"model", (first, second))
    named = frame([Part("namespace", 0, 0, "tenant-ü".encode())])
    keyed = spelt_out(range(1, 9), b"", (named, b""), lambda message: hmac.new(SECRET, message, "sha256").digest())
    assert last("secret") == keyed


@pytest.mark.parametrize("seed", ["0", "1"])
def test_digests_are_the_same_in_another_process(seed):
    code = (
        "from pagedcache.digests import prompt_digests\n"
        "from pagedcache.keys import adapter, content, salt\n"
        "keys = [salt('tenant', 6), content(b'\\x00\\xff', 5, 8), adapter('lora-1')]\n"
        "ids = [0, 2**31 - 1, 3, 4, 5, 6, 7, 8]\n"
        "print(prompt_digests(ids, 4, namespace='tenant-\\xfc', keys=keys, fingerprint=b'model')[-1].hex())"
    )
    environment = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == VECTORS["all"][1]


@pytest.mark.parametrize("dtype", ["<i4", ">i4", "<i8", ">u2", np.uint8])
def test_i06_any_byte_order_gives_the_same_digests(dtype):
    """I06, and contract 16: what a big-endian machine would have in memory."""
    assert prompt_digests(np.arange(1, 9).astype(dtype), 4)[-1].hex() == VECTORS["plain"][1]
    assert prompt_digests(np.arange(1, 17).astype(dtype)[::2], 4) == prompt_digests(range(1, 17, 2), 4)


def test_a_whole_prompt_is_a_chain_of_blocks():
    frames = {0: frame([Part("adapter", 0, 0, b"lora-1")]), 2: frame([Part("salt", 1, 0, b"s")])}
    digest, chain = root_digest(4, b"model"), []
    for block in range(3):
        digest = block_digest(digest, range(4 * block, 4 * block + 4), frames.get(block, b""))
        chain.append(digest)
    keys = [adapter("lora-1"), salt("s", 9)]
    assert prompt_digests(range(14), 4, keys=keys, fingerprint=b"model") == chain
    assert all(len(each) == DIGEST_SIZE for each in chain)


@pytest.mark.parametrize(("length", "blocks"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_full_blocks_have_a_digest(length, blocks):
    assert len(prompt_digests(range(length), 4)) == blocks


BASE = {"tokens": list(range(12)), "block_size": 4, "namespace": Namespace("a", b"s" * 32), "fingerprint": b"m"}


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({}, 3),
        ({"tokens": [*range(11), 99]}, 2),
        ({"tokens": [*range(7), 99, *range(8, 12)]}, 1),
        ({"keys": [salt("t", 8)]}, 2),
        ({"keys": [content("cat", 7, 9)]}, 1),
        ({"keys": [adapter("x")]}, 0),
        ({"namespace": Namespace("b", b"s" * 32)}, 0),
        ({"namespace": Namespace("a", b"t" * 32)}, 0),
        ({"namespace": "a"}, 0),
        ({"namespace": None}, 0),
        ({"fingerprint": b"n"}, 0),
        ({"fingerprint": b""}, 0),
    ],
)
def test_every_input_counts(change, shared):
    ours, theirs = prompt_digests(**BASE), prompt_digests(**BASE | change)
    assert [a == b for a, b in zip(ours, theirs, strict=True)] == [True] * shared + [False] * (3 - shared)


def test_w40_blocks_of_another_size_never_have_the_same_digest():
    """W40: a digest made at one granularity is not taken for one of another."""
    assert set(prompt_digests(range(16), 4)).isdisjoint(prompt_digests(range(16), 8))
    assert block_digest(root_digest(4), range(4)) != block_digest(root_digest(8), range(4))


def test_no_tokens_can_pass_for_a_key():
    """The same bytes, split between key and tokens in two ways."""
    root, ids = root_digest(4), [1, 2, 3, 4]
    key = np.array(ids[:1], "<i4").tobytes()
    assert block_digest(root, ids[1:], key) != block_digest(root, ids)
    assert root_digest(4, b"model") != root_digest(4, b"mode")


def test_every_block_is_keyed_with_the_secret():
    """Contract 17: a stored digest of one block must not help to test guesses of the next."""
    namespace = Namespace("a", SECRET)
    first, second = prompt_digests(range(8), 4, namespace=namespace)
    assert block_digest(first, range(4, 8)) != second
    assert block_digest(first, range(4, 8), secret=SECRET) == second


def test_s03_the_hash_sees_each_block_once(monkeypatch):
    """S03: hashing costs one call per block, none per token."""
    calls = []
    real = digests._hash
    monkeypatch.setattr(digests, "_hash", lambda message, secret: calls.append(len(message)) or real(message, secret))
    prompt_digests(np.arange(50_000, dtype=np.int32), 16)
    assert len(calls) == 50_000 // 16 + 1
    assert max(calls) < 16 * 4 + 2 * DIGEST_SIZE


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: block_digest(b"short", [1]), ValueError, "parent must be 32 bytes"),
        (lambda: block_digest("x" * 32, [1]), ValueError, "parent must be 32 bytes"),
        (lambda: block_digest(b"x" * 32, [-1]), ValueError, "tokens holds -1"),
        (lambda: block_digest(b"x" * 32, []), ValueError, "tokens is empty"),
        (lambda: block_digest(b"x" * 32, [2**31]), ValueError, "does not fit int32"),
        (lambda: block_digest(b"x" * 32, [1.5]), TypeError, "must be integers"),
        (lambda: block_digest(b"x" * 32, [[1]]), ValueError, "one dimension"),
        (lambda: block_digest(b"x" * 32, [1], "key"), TypeError, "key must be bytes"),
        (lambda: root_digest(0), ValueError, "block_size is 0"),
        (lambda: root_digest(4, "model"), TypeError, "fingerprint must be bytes"),
        (lambda: prompt_digests([1, 2], 0), ValueError, "block_size is 0"),
        (lambda: prompt_digests([1, 2], 4, keys=[content("cat", 0, 3)]), ValueError, "beyond its prompt"),
    ],
)
def test_wrong_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
