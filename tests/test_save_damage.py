"""Damaged, foreign and hostile saved files: refused by what is wrong with them, and the cache is as it was."""

import json
import os

import numpy as np
import pytest
from kv_drive import Rows
from saved_drive import PROMPT, make_cache, rows_of, state

from pagedcache import KVCache, Namespace, content
from pagedcache.errors import CorruptFile, ForeignFormat
from pagedcache.saved._manifest import Group, Manifest, Owner, SavedPath
from pagedcache.saved.saved_file import FOOTER, HEADER_BYTES, MAGIC, SavedFile, SavedFileWriter
from pagedcache.tiers._checked import crc32c
from pagedcache.tiers.block_format import BlockFormat


@pytest.fixture
def path(tmp_path):
    """A file with two sequences that share, one of them with a key and a namespace."""
    rows = Rows(make_cache())
    a = rows.admit(PROMPT)
    b = rows.admit([1, 2, 3, 4, 5], namespace="ours", keys=[[content("cat", 1, 4)]])
    rows.cache.save(tmp_path / "saved.kv", [a, rows.fork(a, at=6), b])
    return tmp_path / "saved.kv"


@pytest.fixture
def busy():
    """A cache in use, which no bad file may change; blocks are cached, none is vacant but three."""
    rows = Rows(make_cache(num_blocks=8))
    rows.admit([7, 8, 9])
    rows.release(rows.admit([6] * 16))
    before = state(rows.cache)
    yield rows.cache
    assert state(rows.cache) == before
    rows.verify()
    with pytest.raises(CorruptFile):  # nothing was left open, either
        rows.cache.restore(os.devnull)


def test_the_file_is_what_the_others_are_made_of(path):
    cache, ids = KVCache.load(path)
    rows_of(cache, dict(zip(ids, (PROMPT, PROMPT[:6], [1, 2, 3, 4, 5]), strict=True))).verify()


def test_every_64th_bit(path, busy):  # T08
    data = path.read_bytes()
    for bit in range(0, 8 * len(data), 64):
        flipped = bytearray(data)
        bit += bit // 64 % 64  # another place within 8 bytes each time
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CorruptFile):
            busy.restore(path)


def test_cut_short_at_every_length(path, busy):
    data = path.read_bytes()
    for size in [*range(0, len(data), 512), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(CorruptFile):
            busy.restore(path)


def test_grown_or_moved(path, busy):
    data = path.read_bytes()
    for wrong in (data + b"\0", data[1:], data + data, b"\0" + data, bytes(len(data)), b"", b"GGUF" * 2000):
        path.write_bytes(wrong)
        with pytest.raises(CorruptFile):
            busy.restore(path)


def parts_of(data):
    """Header, records, tables, manifest and the footer's values of a file."""
    footer = list(FOOTER.unpack(data[-FOOTER.size :]))
    _, _, _, _, tables, text, *_ = footer
    end = len(data) - FOOTER.size
    begin = end - text - tables
    return data[:HEADER_BYTES], data[HEADER_BYTES:begin], data[begin : end - text], data[end - text : end], footer


def whole(header, records, tables, text, footer):
    """The file of these parts, checksums and sizes right."""
    _, version, zero, blocks, *_ = footer
    packed = FOOTER.pack(
        MAGIC, version, zero, blocks, len(tables), len(text), crc32c(header), crc32c(tables), crc32c(text), 0
    )[:-4]
    return header + records + tables + text + packed + crc32c(packed).to_bytes(4, "little")


def test_the_makers_of_hostile_files_make_good_ones_too(path):
    data = path.read_bytes()
    assert whole(*parts_of(data)) == data


def changed(told, where, value):
    for step in where[:-1]:
        told = told[step]
    told[where[-1]] = value


HOSTILE = [
    (["paths", 0, "entries"], value) for value in (-1, 2, 4, 2**31, 2**80, 1.5, True, None, "3")
] + [
    (["paths", 0, "position"], value) for value in (-1, 0, 8, 13, 2**31, None)
] + [
    (["paths", 0, "pad"], value) for value in (1, -1, 12, "x")
] + [
    (["paths", 0, "priority"], value) for value in (-1, None, 2**31)
] + [
    (["paths", 0, "namespace"], value) for value in (-1, 2, None)
] + [
    (["paths", 2, "keys"], value)
    for value in (
        [["image", "00", 1, 9]], [["image", "00", 4, 2]], [["image", "xyz", 1, 4]], [["image", "", 1, 4]], [["image"]],
        [["namespace", "00", 0, 4]], [[7, "00", 1, 4]], {}, [["a", "00", 1, 3], ["b", "00", 2, 4]],
        [["image", "00" * 2000, 1, 4]],
    )
] + [
    (["paths", 0, "known"], None), (["paths", 0, "sequence"], 1), (["paths"], {}), (["paths", 0], {}), (["paths"], []),
    (["namespaces"], []), (["namespaces", 0], ["zz", None]), (["namespaces", 1], ["00" * 2000, None]),
    (["groups"], []), (["groups", 0], [2, "sliding_window", 4, 0]), (["groups", 0], [3, "full", None, 0]),
    (["groups", 0], [2, "other", None, 0]), (["groups", 0], [2, "full"]), (["groups"], [[2, "full", None, 0]] * 3),
    (["max_step_tokens"], 0), (["max_step_tokens"], "8"), (["more"], 1), (["paths", 2, "known"], False),
]  # fmt: skip


@pytest.mark.parametrize(("where", "value"), HOSTILE, ids=str)
def test_a_manifest_that_makes_no_sense(path, busy, where, value):
    header, records, tables, text, footer = parts_of(path.read_bytes())
    told = json.loads(text)
    changed(told, where, value)
    path.write_bytes(whole(header, records, tables, json.dumps(told).encode(), footer))
    with pytest.raises(CorruptFile, match=r"saved\.kv has "):
        busy.restore(path)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b"1" * 5000, b"{}"])
def test_a_manifest_that_is_none(path, busy, text):
    header, records, tables, _, footer = parts_of(path.read_bytes())
    path.write_bytes(whole(header, records, tables, text, footer))
    with pytest.raises(CorruptFile, match="a manifest that makes no sense"):
        busy.restore(path)


@pytest.mark.parametrize("entry", [-1, -2, 5, 2**31 - 1])
def test_tables_that_name_what_is_not_there(path, busy, entry):
    header, records, tables, text, footer = parts_of(path.read_bytes())
    tables = tables[:-4] + entry.to_bytes(4, "little", signed=True)
    path.write_bytes(whole(header, records, tables, text, footer))
    with pytest.raises(CorruptFile):
        busy.restore(path)


def test_tokens_that_are_none(path, busy):
    header, records, tables, text, footer = parts_of(path.read_bytes())
    at = 4 * footer[3] * 2  # behind the checksums
    tables = tables[:at] + b"\xff" * 4 + tables[at + 4 :]
    path.write_bytes(whole(header, records, tables, text, footer))
    with pytest.raises(CorruptFile, match="without the tokens"):
        busy.restore(path)


@pytest.mark.parametrize("blocks", [0, 1, 4, 6, 2**31, 2**62, 2**64 - 1])
def test_counts_that_do_not_fit_the_size(path, busy, blocks):
    *parts, footer = parts_of(path.read_bytes())
    footer[3] = blocks
    path.write_bytes(whole(*parts, footer))
    with pytest.raises(CorruptFile, match=r"bytes, and tells of|are the limit"):
        busy.restore(path)


@pytest.mark.parametrize("version", [0, 2, 99])
def test_other_versions(path, version):  # T08
    *parts, footer = parts_of(path.read_bytes())
    footer[1] = version
    path.write_bytes(whole(*parts, footer))
    with pytest.raises(ForeignFormat, match=f"version {version}; this release knows version 1"):
        KVCache.load(path)


def test_a_header_that_claims_giant_blocks_takes_no_memory(path, busy):
    form = BlockFormat("00", "float32", "NHD", 1024, 0, 2**31 - 1, 0, 2**31 - 1, 2**31 - 1, 2**31 - 1)
    _, records, tables, text, footer = parts_of(path.read_bytes())
    path.write_bytes(whole(form.header(), records, tables, text, footer))
    for load in (KVCache.load, busy.restore):
        with pytest.raises(CorruptFile, match="bytes, and tells of"):
            load(path)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"fingerprint": b"other"}, "fingerprint"), ({"dtype": "float16"}, "dtype")],
)
def test_foreign_files(path, changes, field):  # T08
    cache = make_cache(**changes)
    before = state(cache)
    with pytest.raises(ForeignFormat, match=f"holds blocks with {field} "):
        cache.restore(path)
    assert state(cache) == before


def test_load_can_insist_on_a_model(path):
    KVCache.load(path, fingerprint=b"tiny")
    with pytest.raises(ForeignFormat, match="fingerprint"):
        KVCache.load(path, fingerprint=b"other")


def test_sizes_beyond_2_and_4_gib(tmp_path):  # T10
    """A sparse file of some 5 GiB, of which one block at each end is read."""
    form = BlockFormat("00", "float32", "NHD", 1024, 0, 2, 0, 8, 1024, 1024)
    blocks = 5 * 2**30 // form.block_nbytes
    zeros = crc32c(bytes(form.record_nbytes))
    path = SavedPath(False, np.arange(blocks, dtype=np.int32)[:, None], 1024 * blocks)
    with open(tmp_path / "large.kv", "w+b", buffering=0) as file:
        writer = SavedFileWriter(file.fileno(), form)
        writer._crcs.append(np.full(2 * blocks, zeros, np.uint32))
        file.seek(HEADER_BYTES + blocks * form.block_nbytes)
        writer.finish(
            np.zeros((blocks, 1024), np.int32), Manifest([Group(2, "full", None, 0)], None, [Owner(b"", None)], [path])
        )
    assert (tmp_path / "large.kv").stat().st_size > 5 * 2**30
    with SavedFile.open(tmp_path / "large.kv") as saved:
        assert saved.num_blocks == blocks
        for number in (0, blocks - 1):
            [(numbers, records)] = saved.records(np.array([number]))
            assert numbers.tolist() == [number] and not records.any()
        saved._crcs[blocks - 1, 1] ^= 1
        with pytest.raises(CorruptFile, match=f"block {blocks - 1}, layer 1"):
            list(saved.records(np.array([blocks - 1])))


def test_a_secret_is_not_needed_to_find_damage(path, busy):
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFile, match="damaged record: block 0, layer 0"):
        busy.restore(path)
    with pytest.raises(ValueError, match="nothing of namespace"):
        busy.restore(path, namespace=Namespace("other"))
