"""A folder of the disk tier in a later process: everything complete is there; what is missing is a miss."""

import numpy as np
import pytest
from disk_blocks import FORM, SLOT, get, key, opened, put, records_of, there

from pagedcache.tiers import Places


def test_blocks_pins_and_order_survive(tmp_path):  # T02, T05
    with opened(tmp_path / "tier") as tier:
        put(tier, [0, 1, 2])
        put(tier, [3, 4])
        tier.pin([key(0)], "system prompt")
        assert get(tier, [0, 1, 2]) == 3
        order = tier.digests()
    assert order == [key(n) for n in (0, 1, 2, 3, 4)]
    with opened(tmp_path / "tier") as tier:
        assert tier.digests() == order
        assert get(tier, [0, 1, 2]) == 3 and get(tier, [3, 4]) == 2
        assert tier.pins() == {"system prompt": [key(0)]} and tier.stats().more["pinned"] == 1


def test_a_store_that_was_not_complete_is_not_there(tmp_path):
    with opened(tmp_path / "tier") as tier:
        store = tier.prepare_store([key(0)])
        tier.store(store, Places.of_records(records_of([0])))
    with opened(tmp_path / "tier") as tier:
        assert there(tier, [0]) == []
        put(tier, [1])  # the slot that was written is free
        assert there(tier, [0, 1]) == [1]


@pytest.mark.parametrize("name", ["blocks", "index.sqlite"])
def test_a_missing_file_is_a_miss(tmp_path, name):  # T05
    with opened(tmp_path / "tier") as tier:
        put(tier, [0, 1])
    (tmp_path / "tier" / name).unlink()
    with opened(tmp_path / "tier") as tier:
        assert there(tier, [0, 1]) == []
        put(tier, [5, 1])
        assert there(tier, [0, 1, 5]) == [1, 5]
    with opened(tmp_path / "tier") as tier:
        assert there(tier, [0, 1, 5]) == [1, 5]


def test_a_cut_slab_loses_what_is_cut(tmp_path):
    with opened(tmp_path / "tier") as tier:
        put(tier, list(range(10)))
    path = tmp_path / "tier" / "blocks"
    with path.open("r+b") as file:
        file.truncate(4096 + 4 * SLOT + 5000)
    with opened(tmp_path / "tier") as tier:
        assert there(tier, list(range(10))) == [0, 1, 2, 3]
        put(tier, list(range(10)))
        assert get(tier, list(range(10))) == 10


def test_slots_beyond_4_gib(tmp_path):  # T10: sizes are 64-bit; the slab is sparse
    with opened(tmp_path / "tier", "20 GiB") as tier:
        put(tier, [0])
        writer = tier._opened.writer
        writer.slab._file.truncate(4096 + 1_000_000 * SLOT)
        writer.catalog.resize(1_000_000)
        writer.catalog.take(999_990)
        put(tier, [1, 2])
        assert writer.catalog.slots[key(1)] * SLOT > 2**32
        assert get(tier, [0, 1, 2]) == 3
    with opened(tmp_path / "tier", "20 GiB") as tier:
        assert get(tier, [0, 1, 2]) == 3
        stats = tier.stats()
        assert stats.capacity == 20 << 30 and stats.more["slots"] == 1_000_000


def test_index_and_slab_that_disagree(tmp_path):
    """Two rows for one slot, rows beyond the slab, rows of nonsense: gone at the next opening, none served."""
    import sqlite3

    with opened(tmp_path / "tier") as tier:
        put(tier, [0, 1, 2])
        slots = {number: tier._opened.writer.catalog.slots[key(number)] for number in range(3)}
    database = sqlite3.connect(tmp_path / "tier" / "index.sqlite")
    rows = [(key(10), slots[0]), (key(11), 2**50), (key(12), -1), (key(13), "x"), ("text", 1), (b"short", 2), (b"", 9)]
    database.executemany("INSERT INTO blocks VALUES (?, ?, 1)", rows)
    database.execute("UPDATE blocks SET slot = ? WHERE digest = ?", (slots[1], key(2)))
    database.commit()
    database.close()
    with opened(tmp_path / "tier") as tier:
        assert set(there(tier, [0, 1, 2, 10, 11, 12, 13])) <= {0, 1}
        assert tier.stats().blocks == tier._opened.index.count() <= 2
        put(tier, list(range(30)))
        assert get(tier, list(range(30))) == 30


def test_another_forms_blocks_do_not_pass(tmp_path):
    """Slots copied from one place of the slab to another do not pass for what belongs there."""
    with opened(tmp_path / "tier") as tier:
        put(tier, [0, 1])
    path = tmp_path / "tier" / "blocks"
    data = bytearray(path.read_bytes())
    data[4096 : 4096 + SLOT], data[4096 + SLOT : 4096 + 2 * SLOT] = (
        data[4096 + SLOT : 4096 + 2 * SLOT],
        data[4096 : 4096 + SLOT],
    )
    path.write_bytes(data)
    with opened(tmp_path / "tier") as tier:
        assert there(tier, [0, 1]) == []
        assert tier.stats().corrupt == 2
        assert tier.stats().blocks == 0


def test_every_byte_of_a_head_counts(tmp_path):
    """Also where the records are right: nothing of a head is believed that its checksum does not cover."""
    with opened(tmp_path / "tier") as tier:
        put(tier, [0])
    path = tmp_path / "tier" / "blocks"
    data = path.read_bytes()
    for at in range(4096, 4096 + 56 + 4 * FORM.layers):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with opened(tmp_path / "tier", readonly=True) as reader:
            assert reader.prepare_load([key(0)]).count == 0


def test_a_wrong_record_ends_a_load(tmp_path):
    with opened(tmp_path / "tier") as tier:
        put(tier, [0, 1, 2])
        at = 4096 + tier._opened.writer.catalog.slots[key(1)] * SLOT + 4096 + FORM.record_nbytes + 3
    with (tmp_path / "tier" / "blocks").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))
    with opened(tmp_path / "tier") as tier:
        load = tier.prepare_load([key(0), key(1), key(2)])
        found = Places.of_records(np.zeros((3, FORM.layers, FORM.record_nbytes), np.uint8))
        assert load.count == 3
        assert tier.load(load, range(1), found) == 3
        assert tier.load(load, range(1, 2), found) == 1
        assert tier.load(load, range(2, 3), found) == 1
        tier.complete_load(load)
        stats = tier.stats()
        assert (stats.hits, stats.misses, stats.corrupt, stats.blocks) == (1, 2, 1, 2)
        assert there(tier, [0, 1, 2]) == [0, 2]
