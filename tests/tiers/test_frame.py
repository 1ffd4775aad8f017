"""The header of a block on the server; its test vector stands in docs/remote_tier.md."""

import dataclasses

import numpy as np
import pytest
from redis_setting import FORM

from pagedcache import CacheSpec
from pagedcache.tiers import BlockFormat
from pagedcache.tiers._checked import crc32c
from pagedcache.tiers.frame import Frame

DIGEST = bytes(range(32))
CRCS = np.array([1, 2**32 - 1, 7], np.uint32)
FRAME = Frame(FORM)


def test_the_vector():
    form = BlockFormat.of(CacheSpec(layers=2, kv_heads=1, head_dim=2, block_size=1, fingerprint=b"tiny"))
    crcs = np.array([crc32c(bytes(range(16))), crc32c(bytes(range(16, 32)))], np.uint32)
    frame = Frame(form)
    assert frame.format_id == "925d6dc6a37131ff"
    assert frame.header(DIGEST, crcs) == bytes.fromhex("""
        70 63 62 6c 6f 63 6b 0a 01 00 00 00 02 00 00 00
        92 5d 6d c6 a3 71 31 ff 82 56 98 84 80 fa 04 10
        8a e8 ca e9 71 5d 08 79 bf 09 02 c3 5c d5 23 38
        00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f
        10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f
        20 00 00 00 00 00 00 00 eb 08 c9 d9 6b 5a 0f a7
        e7 c7 7f a3
    """)


def test_round_trip():
    header = FRAME.header(DIGEST, CRCS)
    assert len(header) == FRAME.nbytes and FRAME.checksums(header, DIGEST).tolist() == CRCS.tolist()


def test_every_flipped_bit_is_seen():
    header = FRAME.header(DIGEST, CRCS)
    for bit in range(8 * len(header)):
        torn = bytearray(header)
        torn[bit // 8] ^= 1 << bit % 8
        assert FRAME.checksums(bytes(torn), DIGEST) is None


@pytest.mark.parametrize("cut", [0, 1, 8, 88, -4, -1])
def test_a_cut_header_is_none(cut):
    assert FRAME.checksums(FRAME.header(DIGEST, CRCS)[:cut], DIGEST) is None


@pytest.mark.parametrize("reply", [None, 7, "text", b""])
def test_other_replies_are_none(reply):
    assert FRAME.checksums(reply, DIGEST) is None


# T08, T09: another block's header, or another format's with equal sizes, is none.
def test_t08_t09_a_header_of_something_else_is_none():
    other = Frame(dataclasses.replace(FORM, first_layer=3))
    assert other.nbytes == FRAME.nbytes and other.format_id != FRAME.format_id
    assert FRAME.checksums(other.header(DIGEST, CRCS), DIGEST) is None
    assert FRAME.checksums(FRAME.header(DIGEST[::-1], CRCS), DIGEST) is None
