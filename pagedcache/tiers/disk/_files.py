"""Every operation on the tier's files: one place to read, to make fail in tests, and to judge what is safe.

A folder of the tier belongs to one user and is writable by that user alone; so do the files. Names inside it are
opened without following links. What is refused raises TierError, and so do the system's errors, with their errno.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pagedcache.errors import TierError, TierLocked
from pagedcache.tiers._checked import read_blocks, write_checked

__all__ = [
    "File",
    "check_file",
    "check_folder",
    "close",
    "create_file",
    "drop_file",
    "is_full",
    "lock",
    "make_folder",
    "put_file",
    "sync_folder",
    "told",
    "unlock",
]

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
NO_ALLOCATION = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Turn the system's errors into TierError that says what was tried."""
    try:
        yield
    except TierError:
        raise
    except OSError as error:
        failed = TierError(f"{what} failed: {error.strerror or error}")
        failed.errno = error.errno
        raise failed from error


def is_full(error: OSError) -> bool:
    """Whether there is no room: on the disk, in a quota, or by a limit on the size of files."""
    return error.errno in FULL


def make_folder(path: Path) -> None:
    """Create the folder, for its user alone, where it is not there."""
    with told(f"creating the folder {path}"), contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
        sync_folder(path.parent)


def check_folder(path: Path) -> None:
    """Refuse what is no folder of this user alone."""
    with told(f"opening the folder {path}"):
        found = os.lstat(path)
    _require_ours(path, found)
    if not stat.S_ISDIR(found.st_mode):
        raise TierError(f"{path} is not a folder")


def check_file(path: Path) -> int | None:
    """Refuse what is no plain file of this user alone; its size, or None where there is none.

    It is not opened: closing a second descriptor of a database would drop the locks that SQLite holds on it.
    """
    with told(f"looking at {path}"):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return None
    _require_ours(path, found)
    if not stat.S_ISREG(found.st_mode):
        raise TierError(f"{path} is not a plain file")
    return found.st_size


def _require_ours(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise TierError(f"{path} is a symbolic link, which could lead anywhere: give the place itself")
    if found.st_uid != os.geteuid():
        raise TierError(f"{path} belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}")
    if found.st_mode & OTHERS_MAY_WRITE:
        raise TierError(
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, so others may write there: run chmod go-w on it"
        )


def create_file(path: Path, *, sync: bool) -> None:
    """Create an empty file where there is none, for its user alone."""
    with told(f"creating {path}"), contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        if sync:  # a database whose name is lost would be lost with all that it has committed
            sync_folder(path.parent)


def put_file(path: Path, content: bytes, *, sync: bool) -> None:
    """Create a file whole: it is there with all its content, or not at all."""
    new = path.with_name(path.name + ".new")
    with told(f"creating {path}"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, memoryview(content), 0)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(new, path)
        if sync:
            sync_folder(path.parent)


def drop_file(path: Path) -> None:
    """Remove a file that is of no use, if it is there."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def sync_folder(path: Path) -> None:
    """Make names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock(path: Path) -> int:
    """Take the lock that makes this the only writer; closing the descriptor that is returned frees it."""
    with told(f"opening {path}"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode(errors="replace").strip()
        os.close(fd)
        raise TierLocked(
            f"{path.parent} is open for writing already, by process {holder or '?'}: open it with readonly=True, "
            "or give each process a folder of its own"
        ) from None
    except OSError as error:
        os.close(fd)
        raise TierError(f"locking {path} failed: {error.strerror}") from error
    with contextlib.suppress(OSError):  # a full disk: only messages lack it
        os.pwrite(fd, b"%-20d\n" % os.getpid(), 0)  # of one width: cutting a file takes some systems milliseconds
    return fd


def close(fd: int) -> None:
    """Close a descriptor."""
    os.close(fd)


def unlock(fd: int) -> None:
    """Free a lock, also where forked children have its descriptor still."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


class File:
    """An open file of blocks.

    Parameters
    ----------
    path : Path
    readonly : bool
    """

    def __init__(self, path: Path, *, readonly: bool) -> None:
        self.path = path
        with told(f"opening {path}"):
            self.fd = os.open(path, (os.O_RDONLY if readonly else os.O_RDWR) | os.O_NOFOLLOW | os.O_CLOEXEC)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        with told(f"looking at {self.path}"):
            return os.fstat(self.fd).st_size

    def head(self, size: int) -> bytes:
        """Return the first bytes."""
        with told(f"reading {self.path}"):
            return os.pread(self.fd, size, 0)

    def read_rows(self, rows: Bytes, offsets: NDArray[np.int64]) -> int:
        """Fill rows from the file; how many leading ones could be read whole."""
        for done, (row, offset) in enumerate(zip(rows, offsets.tolist(), strict=True)):
            try:
                got = os.preadv(self.fd, [row], offset)
            except OSError:
                return done
            if got < row.size:
                return done
        return len(rows)

    def read_blocks(
        self, offsets: Numbers, layers: Sequence[Sequence[Bytes]], rows: Numbers, crcs: NDArray[np.uint32]
    ) -> int:
        """Read blocks straight into rows of arrays; how many leading ones are right. OSError from the medium."""
        return read_blocks(self.fd, offsets, layers, rows, crcs)

    def write_rows(self, rows: Bytes, offsets: NDArray[np.int64]) -> None:
        """Write rows, each at its offset."""
        with told(f"writing to {self.path}"):
            for row, offset in zip(rows, offsets.tolist(), strict=True):
                _write_all(self.fd, memoryview(row), offset)

    def write_checked(
        self, offsets: NDArray[np.int64], layers: Sequence[tuple[Bytes, ...]], rows: NDArray[np.int64], pad: int
    ) -> NDArray[np.uint32]:
        """Write blocks out of rows of arrays; CRC-32C of each record, uint32 [blocks, layers]."""
        with told(f"writing to {self.path}"):
            return write_checked(self.fd, offsets, layers, rows, pad)

    def sync(self) -> None:
        """Make durable what was written, and the size."""
        with told(f"fdatasync of {self.path}"):
            os.fdatasync(self.fd)

    def grow(self, size: int) -> None:
        """Allot room up to `size` bytes."""
        with told(f"growing {self.path} to {size} bytes"):
            before = os.fstat(self.fd).st_size
            try:
                os.posix_fallocate(self.fd, before, size - before)
            except AttributeError:  # macOS has none
                os.ftruncate(self.fd, size)
            except OSError as error:
                if error.errno not in NO_ALLOCATION:
                    raise
                os.ftruncate(self.fd, size)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        with told(f"cutting {self.path} to {size} bytes"):
            os.ftruncate(self.fd, size)

    def close(self) -> None:
        """Close it; once."""
        os.close(self.fd)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done
