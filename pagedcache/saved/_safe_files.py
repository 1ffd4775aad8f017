"""Files that hold what users said: private, never through a symbolic link, and replaced as a whole or not at all."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pagedcache.errors import CorruptFile, TierError

__all__ = ["reading", "replacing", "write_all"]


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Yield the folder of a path, open; TierError where anybody may write there."""
    if os.name != "posix":
        raise NotImplementedError(f"files are saved on POSIX systems alone; this one is {os.name!r}")
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & stat.S_IWOTH:
            raise TierError(f"{path.parent} is writable for everybody (mode {mode:o}); choose a folder of your own")
        yield fd
    finally:
        os.close(fd)


@contextmanager
def replacing(path: Path) -> Iterator[int]:
    """Yield a new file, open for writing, that takes the place of the one at `path` once the block has ended well.

    It is written beside it under another name, brought to the disk, renamed, and the folder brought to the disk: a
    crash leaves the old file or the new one, and at worst one more that ends in ``.tmp``. Where the block raises,
    nothing was changed. The file can be read and written by its owner alone.
    """
    with _folder(path) as folder:
        with suppress(FileNotFoundError):
            if stat.S_ISLNK(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise TierError(f"{path} is a symbolic link; name the file itself")
        name = f".{path.name}.{secrets.token_hex(8)}.tmp"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            try:
                os.fchmod(fd, 0o600)  # whatever the umask
                yield fd
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise
        os.fsync(folder)


@contextmanager
def reading(path: Path) -> Iterator[int]:
    """Yield the file, open for reading; TierError where it is a link, CorruptFile where it is no regular file."""
    with _folder(path) as folder:
        with suppress(FileNotFoundError):
            if stat.S_ISLNK(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise TierError(f"{path} is a symbolic link; name the file itself")
        # Without O_NONBLOCK a pipe would be waited for.
        fd = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CorruptFile(f"{path} is no regular file")
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: memoryview) -> None:
    """Write all of it, however many calls it takes: one of them takes at most 2 GiB."""
    view = data.cast("B")
    while view.nbytes:
        view = view[os.write(fd, view) :]
