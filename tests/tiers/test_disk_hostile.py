"""Files from strangers and from broken disks: refused at opening, or a miss; never a wrong byte, never a crash."""

import dataclasses
import os
import sqlite3

import pytest
from disk_blocks import FORM, get, opened, put, there

from pagedcache.errors import CorruptFile, TierError
from pagedcache.tiers import DiskTier

NUMBERS = [0, 1, 2, 3]
NAMES = ["blocks", "index.sqlite", "lock"]


@pytest.fixture
def folder(tmp_path):
    """A folder with a few blocks."""
    with opened(tmp_path / "tier", "1 MiB") as tier:
        put(tier, NUMBERS[:2])
        put(tier, NUMBERS[2:])
        tier.pin([b"\1" * 32], "nothing")
    return tmp_path / "tier"


def test_everything_is_the_users_own(folder):
    with opened(folder) as tier:
        put(tier, [7])
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o770])
def test_a_folder_that_others_may_write_is_refused(folder, mode):
    folder.chmod(mode)
    for readonly in (False, True):
        with pytest.raises(TierError, match="others may write there: run chmod go-w"):
            opened(folder, readonly=readonly)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_others_may_write_is_refused(folder, name):
    (folder / name).chmod(0o622)
    with pytest.raises(TierError, match=f"{name} has mode 0622"):
        opened(folder)


@pytest.mark.parametrize("name", [*NAMES, "index.sqlite-wal", "index.sqlite-shm"])
def test_links_are_refused(folder, tmp_path, name):
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    with pytest.raises(TierError, match=f"{name} is a symbolic link"):
        opened(folder)
    assert target.read_bytes() == b"precious"


def test_a_link_to_a_folder_is_refused(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    for readonly in (False, True):
        with pytest.raises(TierError, match="symbolic link"):
            opened(tmp_path / "link", readonly=readonly)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_plain_file_is_refused(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name, 0o600)
    with pytest.raises(TierError, match="not a plain file"):
        opened(folder)


def test_files_of_another_user_are_refused(folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(TierError, match="belongs to user"):
        opened(folder)


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "file").chmod(0o600)
    with pytest.raises(TierError, match="not a folder"):
        opened(tmp_path / "file")


@pytest.mark.parametrize("garbage", [b"no database at all" * 300, b"SQLite format 3\0" + bytes(4080), b"\xff" * 5000])
def test_garbage_for_an_index_is_refused(folder, garbage):
    (folder / "index.sqlite").write_bytes(garbage)
    for readonly in (False, True):
        with pytest.raises(TierError, match=r"index\.sqlite"):
            opened(folder, readonly=readonly)


@pytest.mark.parametrize("garbage", [b"", b"x" * 10000, bytes(4096)])
def test_garbage_for_a_slab_is_refused(folder, garbage):
    (folder / "blocks").write_bytes(garbage)
    with pytest.raises(CorruptFile, match="does not begin as stored blocks do"):
        opened(folder)


def flipped(data, bit):
    """The same bytes with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def use(path, readonly):
    """Open, load everything (`get` compares each byte) and, as a writer, store; how many were given."""
    try:
        with opened(path, "1 MiB", readonly=readonly, sync=False) as tier:  # thousands of times
            found = len(there(tier, NUMBERS))
            if not readonly:
                put(tier, [20, 21])
                there(tier, [*NUMBERS, 20, 21])
            return found
    except TierError:
        return None


def test_every_64th_bit_of_the_slab(folder):
    path = folder / "blocks"
    data = path.read_bytes()
    given = []
    for bit in range(0, 8 * len(data), 64):
        with path.open("r+b") as file:
            file.seek(bit // 8)
            file.write(flipped(data[bit // 8 : bit // 8 + 1], bit % 8))
        given.append(use(folder, readonly=True))
        with path.open("r+b") as file:
            file.seek(bit // 8)
            file.write(data[bit // 8 : bit // 8 + 1])
    assert use(folder, readonly=True) == len(NUMBERS)
    seen = [each for each in given if each != len(NUMBERS)]
    assert {None, len(NUMBERS) - 1} == set(seen)  # refused, or one block is missing
    used_nbytes = 200 + len(NUMBERS) * (68 + 3 * 256)  # header and heads and records; what is flipped between is unused
    assert len(seen) > used_nbytes / 8 * 0.9


def test_every_64th_bit_of_the_index(folder):
    path = folder / "index.sqlite"
    data, slab = path.read_bytes(), (folder / "blocks").read_bytes()
    given = []
    for bit in range(0, 8 * len(data), 64):
        for name in ("-wal", "-shm"):
            (folder / (path.name + name)).unlink(missing_ok=True)
        path.write_bytes(flipped(data, bit + 3))
        given.append(use(folder, readonly=False))
        (folder / "blocks").write_bytes(slab)
    assert len(set(given)) > 1


@pytest.mark.parametrize("size", [0, 100, 4095, 4096, 5000, 8192, 10000])
def test_a_cut_index(folder, size):
    os.truncate(folder / "index.sqlite", size)
    assert use(folder, readonly=False) in (None, 0, len(NUMBERS))  # which depends on whether pages with rows are cut


def test_a_journal_of_garbage_is_harmless(folder):
    (folder / "index.sqlite-wal").write_bytes(os.urandom(20000))
    (folder / "index.sqlite-wal").chmod(0o600)
    assert use(folder, readonly=False) == len(NUMBERS)


@pytest.mark.parametrize("huge", [{"layers": 2**31 - 1}, {"head_dim": 2**31 - 1, "kv_heads": 2**31 - 1}])
def test_huge_numbers_in_the_header(folder, huge):
    """Nothing of the size that a stranger names is allocated."""
    form = dataclasses.replace(FORM, **huge)
    with (folder / "blocks").open("r+b") as file:
        file.write(form.header())
    assert DiskTier.format_of(folder) == form
    with pytest.raises(TierError, match="the limits are"):
        opened(folder, form=form, readonly=True)


def test_huge_numbers_in_the_index(folder):
    database = sqlite3.connect(folder / "index.sqlite")
    database.execute("UPDATE blocks SET slot = 9223372036854775807, used = 9223372036854775807")
    database.commit()
    database.close()
    assert use(folder, readonly=True) == 0
    assert use(folder, readonly=False) == 0
    with opened(folder) as tier:
        assert get(tier, [20, 21]) == 2
