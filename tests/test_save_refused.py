"""What goes wrong while saving or restoring leaves the old file, and the cache, as they were."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from kv_drive import Replaced, Rows
from saved_drive import PROMPT, make_cache, rows_of, state

from pagedcache import KVCache, OutOfBlocks, OutOfSequences
from pagedcache.errors import CorruptFile, TierError
from pagedcache.saved.saved_file import HEADER_BYTES


@pytest.fixture
def rows():
    rows = Rows(make_cache())
    rows.admit(PROMPT)
    rows.admit([5] * 12)
    return rows


@pytest.fixture
def path(tmp_path, rows):
    path = tmp_path / "saved.kv"
    rows.cache.save(path, list(rows.tokens))
    return path


# ---- restoring


def test_no_room(path):
    small = Rows(make_cache(num_blocks=8))
    small.admit([1] * 9)
    small.release(small.admit([2] * 9))
    before = state(small.cache)
    with pytest.raises(OutOfBlocks):
        small.cache.restore(path)
    assert state(small.cache) == before
    small.verify()


@pytest.mark.parametrize(
    ("options", "error"),
    [({"max_sequences": 2}, OutOfSequences), ({"max_length": 11}, ValueError), ({"num_blocks": 2}, ValueError)],
)
def test_bounds_of_the_table(path, options, error):
    cache = make_cache(**options)
    cache.admit([[1]])
    before = state(cache)
    with pytest.raises(error, match=r"max_sequences|max_length is "):
        cache.restore(path)
    assert state(cache) == before


@pytest.mark.parametrize("at", range(3))
def test_a_backend_that_fails_halfway(path, at):
    """Sequences and blocks are as before; blocks that were complete by then may be found."""
    roomy = Rows(make_cache())
    roomy.admit([1, 2, 3])
    working, calls = roomy.cache.backend, []

    def write_blocks(*arguments):
        calls.append(arguments)
        if len(calls) > at:
            raise MemoryError("no scratch memory")
        working.write_blocks(*arguments)

    before = roomy.cache.stats()
    roomy.cache.backend = Replaced(write_blocks=write_blocks)
    with pytest.raises(MemoryError, match="scratch"):
        roomy.cache.restore(path)
    roomy.cache.backend = working
    after = roomy.cache.stats()
    assert (after.sequences, after.used, after.free, after.swapped) == (1, 1, before.free, 0)
    for prompt in ([*PROMPT, 1], [*[5] * 12, 1]):
        roomy.admit(prompt)
    roomy.verify()


def test_a_file_that_changes_between_two_looks(path):
    """Where nothing has to be evicted a record is looked at once: blocks are given back all the same."""
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 3000] ^= 1
    path.write_bytes(data)
    roomy = make_cache()
    before = state(roomy)
    with pytest.raises(CorruptFile, match="damaged record"):
        roomy.restore(path)
    assert state(roomy) == before
    roomy.check()


# ---- saving


def test_the_file_is_its_owners_alone(path, rows):
    previous = os.umask(0)
    try:
        rows.cache.save(path, [])
    finally:
        os.umask(previous)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_crash_before_the_rename_leaves_the_old_file(path, rows, monkeypatch):
    old = path.read_bytes()
    monkeypatch.setattr(os, "rename", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        rows.cache.save(path)
    assert path.read_bytes() == old and os.listdir(path.parent) == ["saved.kv"]


KILLED = """
import os, signal, sys
from pagedcache import KVCache
cache, ids = KVCache.load(sys.argv[1], num_blocks=20)
os.rename = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
cache.save(sys.argv[1], ids[:1])
"""


def test_killed_before_the_rename(path):
    old = path.read_bytes()
    done = subprocess.run([sys.executable, "-P", "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL and path.read_bytes() == old
    KVCache.load(path)
    [left] = [name for name in os.listdir(path.parent) if name.endswith(".tmp")]
    with_all = KVCache.load(path.parent / left)[1]  # it was whole by then, and never took the other's place
    assert len(with_all) == 1


@pytest.mark.parametrize("call", range(6))
def test_a_full_disk(path, rows, monkeypatch, call):
    old, write, calls = path.read_bytes(), os.write, []

    def full(fd, data):
        calls.append(fd)
        if len(calls) > call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        rows.cache.save(path)
    assert path.read_bytes() == old and os.listdir(path.parent) == ["saved.kv"]


def test_writes_in_small_pieces(path, rows, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:1000]))
    rows.cache.save(path, list(rows.tokens))
    cache, ids = KVCache.load(path)
    rows_of(cache, dict(zip(ids, rows.tokens.values(), strict=True))).verify()


def test_the_file_and_its_folder_are_on_the_disk_before_save_returns(path, rows, monkeypatch):
    calls = []
    for name in ("fsync", "rename"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real, **k: calls.append(name) or real(*a, **k))
    rows.cache.save(path)
    assert calls == ["fsync", "rename", "fsync"]


def test_links_and_open_folders_are_refused(path, rows, tmp_path):  # contract 19
    link, folder = tmp_path / "link.kv", tmp_path / "open"
    link.symlink_to(path)
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "saved.kv").write_bytes(path.read_bytes())
    old = path.read_bytes()
    for wrong, match in ((link, "is a symbolic link"), (folder / "saved.kv", "writable for everybody")):
        with pytest.raises(TierError, match=match):
            rows.cache.save(wrong)
        with pytest.raises(TierError, match=match):
            rows.cache.restore(wrong)
    assert path.read_bytes() == old


def test_what_is_no_file(tmp_path, rows):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorruptFile, match="no regular file"):
        rows.cache.restore(tmp_path / "pipe")
    with pytest.raises(CorruptFile, match="no regular file"):
        rows.cache.restore(tmp_path)
    with pytest.raises(FileNotFoundError):
        rows.cache.restore(tmp_path / "nowhere.kv")
    with pytest.raises(IsADirectoryError):
        rows.cache.save(tmp_path)


def test_a_change_while_blocks_are_read(path, rows, monkeypatch):
    """A finalizer may run a verb: what was written so far is written again."""
    sid, other = rows.tokens
    working, calls = rows.cache.backend, []

    def read_blocks(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            rows.run({sid: [1, 2]})
        return working.read_blocks(*arguments)

    rows.cache.backend = Replaced(read_blocks=read_blocks)
    rows.cache.save(path, [sid, other])
    rows.cache.backend = working
    assert len(calls) == 2
    cache, ids = KVCache.load(path)
    rows_of(cache, dict(zip(ids, rows.tokens.values(), strict=True))).verify()
