"""The bytes of a slab file are those that docs/disk_format.md shows."""

import sqlite3

import numpy as np
import pytest

from pagedcache import CacheSpec
from pagedcache.tiers import BlockFormat, DiskTier, Places
from pagedcache.tiers._checked import crc32c
from pagedcache.tiers.disk._index import SCHEMA

FORM = BlockFormat.of(CacheSpec(layers=2, kv_heads=1, head_dim=2, block_size=1, fingerprint=b"example"))
DIGEST = bytes(range(32))
RECORDS = np.arange(1, 33, dtype=np.uint8).reshape(1, 2, 16)


@pytest.fixture
def folder(tmp_path):
    """A folder with one block."""
    with DiskTier(tmp_path / "tier", "1 MiB") as tier:
        tier.bind(FORM)
        store = tier.prepare_store([DIGEST])
        tier.store(store, Places.of_records(RECORDS))
        tier.complete_store(store)
    return tmp_path / "tier"


def dump(data):
    """Lines of 16 bytes, those of zeros left out."""
    rows = [(at, data[at : at + 16]) for at in range(0, len(data), 16)]
    return "\n".join(f"{at:06x}  {row.hex(' ')}" for at, row in rows if row.strip(b"\0"))


def test_the_slab_is_as_documented(folder, checkout):
    page = (checkout / "docs" / "disk_format.md").read_text(encoding="utf-8")
    data = (folder / "blocks").read_bytes()
    assert dump(data) in page
    assert data[:4096] == FORM.header()
    head, records = data[4096 : 4096 + 64], data[8192 : 8192 + 32]
    assert head[:8] == b"pc slot1" and head[8:16] == bytes(8) and head[16:48] == DIGEST
    assert int.from_bytes(head[48:52], "little") == 2
    assert int.from_bytes(head[52:56], "little") == crc32c(head[:52] + head[56:64])
    assert [int.from_bytes(head[at : at + 4], "little") for at in (56, 60)] == [
        crc32c(records[:16]),
        crc32c(records[16:]),
    ]
    assert records == RECORDS.tobytes()


def test_the_index_is_as_documented(folder, checkout):
    page = " ".join((checkout / "docs" / "disk_format.md").read_text(encoding="utf-8").split())
    database = sqlite3.connect(folder / "index.sqlite")
    assert database.execute("SELECT * FROM blocks").fetchall() == [(DIGEST, 0, 1)]
    assert database.execute("PRAGMA application_id").fetchone()[0] == int.from_bytes(b"pcKV", "big")
    database.close()
    for statement in SCHEMA.values():
        assert statement in page


def test_a_file_with_these_bytes_is_read(folder, tmp_path):
    """Bytes made by hand from the description, not by the tier."""
    head = b"pc slot1" + bytes(8) + DIGEST + (2).to_bytes(4, "little")
    crcs = b"".join(crc32c(record.tobytes()).to_bytes(4, "little") for record in RECORDS[0])
    head += crc32c(head + crcs).to_bytes(4, "little") + crcs
    slot = head.ljust(4096, b"\0") + RECORDS.tobytes().ljust(4096, b"\0")
    (folder / "blocks").write_bytes(FORM.header() + slot)
    with DiskTier(folder, readonly=True) as tier:
        tier.bind(FORM)
        load, found = tier.prepare_load([DIGEST]), np.zeros_like(RECORDS)
        assert tier.load(load, range(2), Places.of_records(found)) == 1
        assert (found == RECORDS).all()
