"""The medium fails: a full disk, a failed write, a failed sync, a read error, a folder that cannot be written."""

import errno
import os
import sqlite3

import numpy as np
import pytest
from disk_blocks import FORM, SLOT, get, key, opened, put, records_of, there
from test_disk_processes import run

from pagedcache.errors import TierError
from pagedcache.tiers import Places
from pagedcache.tiers.disk import _files


@pytest.fixture
def tier(tmp_path):
    with opened(tmp_path / "tier") as tier:
        put(tier, [0, 1])
        yield tier


def failing(number, after=0):
    """A function of the system that fails from its call number `after` on."""
    calls = iter(range(10**6))

    def fail(*args, **kwargs):
        if next(calls) >= after:
            raise OSError(number, os.strerror(number))

    return fail


def free(tier):
    """Slots that may be written."""
    return tier.stats().more["free"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_stops_growth_only(tier, monkeypatch, number):
    before = tier.stats()
    with monkeypatch.context() as patch:
        patch.setattr(_files.os, "posix_fallocate", failing(number))
        for begin in range(10, 100, 4):
            put(tier, list(range(begin, begin + 4)))
    stats = tier.stats()
    assert stats.more["slots"] == before.more["slots"] and stats.errors > 0 and stats.more["healthy"]
    assert stats.blocks >= 1 and stats.corrupt == 0
    assert there(tier, [98]) == [98]  # the latest came in the place of others


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_makes_nothing_visible(tier, monkeypatch, number):
    room = free(tier)
    with monkeypatch.context() as patch:
        patch.setattr(_files, "write_checked", failing(number))
        with pytest.raises(TierError, match=r"writing to .*blocks failed") as raised:
            put(tier, [5, 6])
    assert raised.value.errno == number
    assert there(tier, [0, 1, 5, 6]) == [0, 1]
    assert free(tier) >= room and tier.stats().errors == 1
    writer = tier._opened.writer
    assert (writer.most == writer.catalog.count) == (number == errno.ENOSPC)  # growth ends where the disk is full
    assert put(tier, [5, 6]) == 2 and get(tier, [0]) and get(tier, [5, 6]) == 2


def test_a_failed_head_makes_nothing_visible(tier, monkeypatch):
    honest, fail = os.pwrite, failing(errno.EIO, after=1)
    with monkeypatch.context() as patch:
        patch.setattr(_files.os, "pwrite", lambda *args: fail() or honest(*args))
        with pytest.raises(TierError, match="writing"):
            put(tier, [5, 6])
    assert there(tier, [0, 1, 5, 6]) == [0, 1]


def test_after_a_failed_sync_nothing_more_is_stored(tier, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_files.os, "fdatasync", failing(errno.EIO))
        with pytest.raises(TierError, match="fdatasync"):
            put(tier, [5, 6])
    assert put(tier, [7]) == 0  # a second sync would succeed, and would not mean that the bytes are on the disk
    assert there(tier, [0, 1, 5, 6, 7]) == [0, 1]
    assert tier.stats().errors == 1 and not tier.stats().more["healthy"]
    tier.close()
    with opened(tier.path) as again:
        assert there(again, [0, 1, 5, 6]) == [0, 1]
        assert put(again, [5]) == 1


class Failing:
    """A connection whose statements of one kind fail."""

    def __init__(self, database, begins, code):
        self._database, self._begins, self._code = database, begins, code

    def __getattr__(self, name):
        return getattr(self._database, name)

    def execute(self, statement, *args):
        if statement.startswith(self._begins):
            error = sqlite3.OperationalError("as a test wants it")
            error.sqlite_errorcode = self._code
            raise error
        return self._database.execute(statement, *args)


@pytest.mark.parametrize("begins", ["BEGIN", "COMMIT"])
@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY])
def test_a_full_disk_at_the_commit(tier, monkeypatch, begins, code):
    index = tier._opened.index
    with monkeypatch.context() as patch:
        patch.setattr(index, "_database", Failing(index._database, begins, code))
        with pytest.raises(TierError, match="as a test wants it"):
            put(tier, [5, 6])
    assert there(tier, [0, 1, 5, 6]) == [0, 1]
    assert put(tier, [5, 6]) == 2 and get(tier, [5, 6]) == 2


def test_an_index_that_fails_ends_storing(tier, monkeypatch):
    index = tier._opened.index
    with monkeypatch.context() as patch:
        patch.setattr(index, "_database", Failing(index._database, "COMMIT", sqlite3.SQLITE_IOERR))
        with pytest.raises(TierError):
            put(tier, [5])
    assert put(tier, [6]) == 0 and there(tier, [0, 1, 5, 6]) == [0, 1]


def test_a_record_that_cannot_be_read_is_a_miss(tier, monkeypatch):
    put(tier, [2, 3])
    bad = 4096 + tier._opened.writer.catalog.slots[key(2)] * SLOT + 4096
    honest = _files.read_blocks

    def fail(fd, offsets, *args):
        if bad in np.asarray(offsets):
            raise OSError(errno.EIO, "Input/output error")
        return honest(fd, offsets, *args)

    monkeypatch.setattr(_files, "read_blocks", fail)
    assert get(tier, [0, 1, 2, 3]) == 2
    assert there(tier, [0, 1, 2, 3]) == [0, 1, 3]
    assert tier.stats().corrupt == 1


def test_a_head_that_cannot_be_read_is_a_miss(tier, monkeypatch):
    monkeypatch.setattr(_files.os, "preadv", failing(errno.EIO))
    assert get(tier, [0, 1]) == 0


def test_a_block_that_cannot_be_forgotten_is_not_served_either(tier, monkeypatch):
    index = tier._opened.index
    with open(tier.path / "blocks", "r+b") as file:
        file.seek(4096 + tier._opened.writer.catalog.slots[key(0)] * SLOT + 4096)
        file.write(b"wrong")
    monkeypatch.setattr(index, "_database", Failing(index._database, "BEGIN", sqlite3.SQLITE_FULL))
    assert get(tier, [0, 1]) == 0 and there(tier, [0, 1]) == [1]
    monkeypatch.undo()
    assert put(tier, [0]) == 1 and get(tier, [0, 1]) == 2


def test_torn_slots(tier):
    """A slot of which only some sectors reached the disk, in all ways of one cut: a miss."""
    slot = tier._opened.writer.catalog.slots[key(1)]
    path, begin = tier.path / "blocks", 4096 + slot * SLOT
    whole = path.read_bytes()[begin : begin + SLOT]
    tier.close()
    used = (4096 + FORM.block_nbytes) // 512
    for cut in range(SLOT // 512):
        for torn in (whole[: cut * 512] + bytes(SLOT - cut * 512), bytes(cut * 512) + whole[cut * 512 :]):
            with path.open("r+b") as file:
                file.seek(begin)
                file.write(torn)
            with opened(tier.path, readonly=True) as reader:
                assert there(reader, [0, 1]) == ([0, 1] if torn == whole else [0])
    assert used <= SLOT // 512


def test_a_limit_on_the_size_of_files(tmp_path):
    """RLIMIT_FSIZE, as a real full disk: the slab stops growing, and what there is goes on."""
    said = run(
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))\n"
        "with opened(sys.argv[1]) as t:\n"
        "    for n in range(0, 300, 3): put(t, [n, n + 1, n + 2])\n"
        "    s = t.stats()\n"
        "    print(s.corrupt, s.more['healthy'], get(t, [297, 298, 299]), s.more['slots'])",
        tmp_path / "tier",
    )
    assert said[:3] == ["0", "1", "3"] and 3 <= int(said[3]) <= 300000 // SLOT
    with opened(tmp_path / "tier") as tier:
        assert get(tier, [297, 298, 299]) == 3


def test_a_folder_that_cannot_be_written(tier, monkeypatch):
    """A read-only disk: readers work, a writer is told so."""
    path = tier.path
    tier.close()
    honest = os.open

    def refuse(name, flags, *args, **kwargs):
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return honest(name, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "access", lambda *args: False)
    with pytest.raises(TierError, match="Read-only file system"):
        opened(path)
    with opened(path, readonly=True) as reader:
        assert get(reader, [0, 1]) == 2
    (path / "index.sqlite-wal").write_bytes(b"not moved into the index yet")
    (path / "index.sqlite-wal").chmod(0o600)
    with pytest.raises(TierError, match="was not closed by its last writer"):
        opened(path, readonly=True)


def test_a_tier_that_failed_to_store_can_abort(tier, monkeypatch):
    store = tier.prepare_store([key(9)])
    with monkeypatch.context() as patch:
        patch.setattr(_files, "write_checked", failing(errno.EIO))
        with pytest.raises(TierError):
            tier.store(store, Places.of_records(records_of([9])))
    assert tier.complete_store(store) == 0  # nothing was written, so nothing becomes visible
    assert put(tier, [9]) == 1
