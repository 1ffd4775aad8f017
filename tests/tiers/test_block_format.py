"""The header of stored blocks."""

import dataclasses
import json

import pytest

from pagedcache import CacheSpec, tiers
from pagedcache.errors import CorruptFile, ForeignFormat
from pagedcache.spec import LayerGroup
from pagedcache.tiers import BlockFormat, Tier
from pagedcache.tiers._checked import crc32c
from pagedcache.tiers.block_format import HEADER_BYTES, MAGIC

SPEC = CacheSpec(layers=3, kv_heads=2, head_dim=8, v_head_dim=4, dtype="int8", block_size=4, fingerprint=b"model")
FORM = BlockFormat.of(SPEC)


def written(text):
    """A header around any text."""
    return (MAGIC + len(text).to_bytes(4, "little") + crc32c(text).to_bytes(4, "little") + text).ljust(4096, b"\0")


def test_sizes_are_the_specs():
    assert FORM.record_nbytes == SPEC.record_nbytes(0) and FORM.block_nbytes == SPEC.bytes_per_block
    assert FORM.piece_nbytes == (64, 32, 32, 32)


def test_header_round_trip():
    head = FORM.header()
    assert len(head) == HEADER_BYTES and BlockFormat.from_header(head) == FORM


# T08: what is of another kind or version is refused by the name of the field.
@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(BlockFormat)])
def test_every_field_is_compared(field):
    value = getattr(FORM, field)
    other = dataclasses.replace(FORM, **{field: value + 1 if isinstance(value, int) else value + "x"})
    with pytest.raises(ForeignFormat, match=f"the file holds blocks with {field} "):
        FORM.require(other, "the file")


def test_every_flipped_bit_of_the_header_is_seen():
    head = FORM.header()
    used = len(head.rstrip(b"\0"))
    for bit in range(8 * used):
        torn = bytearray(head)
        torn[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile):
            BlockFormat.from_header(bytes(torn))


@pytest.mark.parametrize("size", [0, 5, len(MAGIC), len(MAGIC) + 8, 100])
def test_a_cut_header_is_seen(size):
    with pytest.raises(CorruptFile):
        BlockFormat.from_header(FORM.header()[:size])


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 0},
        {"block_size": 2048},
        {"layers": -1},
        {"layers": True},
        {"kv_heads": 2**40},
        {"head_dim": 1.5},
        {"dtype": "float3"},
        {"fingerprint": 7},
        {"layout": "HND"},
        {"more": 1},
    ],
)
def test_values_of_strangers_are_checked(change):
    values = json.loads(FORM.header()[len(MAGIC) + 8 :].rstrip(b"\0")) | change
    with pytest.raises(CorruptFile, match=next(iter(change))):
        BlockFormat.from_header(written(json.dumps(values).encode()))


@pytest.mark.parametrize("text", [b"[1]", b"{}", b'{"version": 2}', b'{"version": "1"}'])
def test_unknown_versions_are_refused(text):
    with pytest.raises(ForeignFormat, match="version"):
        BlockFormat.from_header(written(text))


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 3000])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(CorruptFile, match="not JSON"):
        BlockFormat.from_header(written(text))


def test_a_spec_without_fingerprint_is_refused():
    with pytest.raises(ValueError, match="fingerprint"):
        BlockFormat.of(dataclasses.replace(SPEC, fingerprint=None))


def test_several_groups_are_refused():
    groups = [LayerGroup(2), LayerGroup(1, kind="sliding_window", window=8)]
    with pytest.raises(NotImplementedError, match="2 layer groups"):
        BlockFormat.of(CacheSpec(3, 1, 8, groups=groups, max_step_tokens=4, fingerprint=b"m"))


def test_a_long_fingerprint_is_refused():
    with pytest.raises(ValueError, match="header of"):
        BlockFormat.of(dataclasses.replace(SPEC, fingerprint=bytes(3000))).header()


@pytest.mark.parametrize("name", ["HostTier", "DiskTier", "RedisTier", "MooncakeTier"])
def test_every_tier_has_what_the_protocol_names(name):
    if name == "RedisTier":
        pytest.importorskip("redis")
    names = [each for each in (*Tier.__annotations__, *vars(Tier)) if not each.startswith("_")]
    assert {"name", "writes", "prepare_load", "close"} <= set(names)
    assert all(hasattr(getattr(tiers, name), each) for each in names)
