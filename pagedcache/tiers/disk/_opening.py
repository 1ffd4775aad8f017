"""Opening a folder: what has to be in order before anything in it is believed."""

from dataclasses import dataclass
from pathlib import Path

from pagedcache._sizes import readable
from pagedcache.errors import CorruptFile
from pagedcache.tiers.block_format import HEADER_BYTES, BlockFormat
from pagedcache.tiers.disk._files import (
    File,
    check_file,
    check_folder,
    close,
    drop_file,
    lock,
    make_folder,
    unlock,
)
from pagedcache.tiers.disk._index import Index
from pagedcache.tiers.disk._shrinking import shrink
from pagedcache.tiers.disk._slab import PAGE, Slab, slot_nbytes
from pagedcache.tiers.disk._writer import Writer

__all__ = ["Opened", "open_folder", "read_format"]

SLAB, INDEX, LOCK = "blocks", "index.sqlite", "lock"
INDEX_BASE = 64 << 10  # bytes of an index without rows, of its shared memory, and of the lock
INDEX_ROW = 128  # bytes of a row, with the room that a B-tree leaves
WAL_PART, WAL_MOST = 64, 4 << 20  # the journal of the index: this part of the size, and this many bytes at most


@dataclass(eq=False, slots=True)
class Opened:
    """An open folder."""

    slab: Slab
    index: Index
    writer: Writer | None = None
    lock: int = -1

    def close(self) -> None:
        """Close everything."""
        try:
            self.index.close()
        finally:
            self.slab.close()
            if self.lock >= 0:
                unlock(self.lock)

    def abandon(self) -> None:
        """Close the descriptors that a forked child has of its parent's files; the database is left alone."""
        self.slab.close()
        if self.lock >= 0:
            close(self.lock)


def slots_within(size: int, form: BlockFormat) -> int:
    """How many slots leave a folder within `size` bytes, its index counted.

    Raises
    ------
    ValueError
        Not one.
    """
    per_slot = slot_nbytes(form) + INDEX_ROW
    fixed = HEADER_BYTES + PAGE + INDEX_BASE
    count = (size - fixed - wal_nbytes(size)) // per_slot
    if count < 1:
        least = (fixed + per_slot) * WAL_PART // (WAL_PART - 1) + 1
        raise ValueError(f"size is {size} bytes; a disk tier for blocks of {form.block_nbytes} needs {readable(least)}")
    return count


def wal_nbytes(size: int) -> int:
    """Bytes that the journal of the index may take."""
    return min(size // WAL_PART, WAL_MOST)


def open_folder(path: Path, form: BlockFormat, size: int, *, readonly: bool, sync: bool) -> Opened:
    """Open a folder for blocks of a format; as a writer, create what is missing and bring it down to `size`."""
    if readonly:
        check_folder(path)
        return _open(path, form, size, readonly=True, sync=sync)
    most = slots_within(size, form)
    make_folder(path)
    check_folder(path)
    check_file(path / LOCK)
    held = lock(path / LOCK)
    try:
        drop_file(path / (SLAB + ".new"))
        opened = _open(path, form, size, readonly=False, sync=sync)
    except BaseException:
        unlock(held)
        raise
    opened.lock = held
    try:
        opened.writer = Writer(opened.slab, opened.index, most)
        if opened.slab.count > most:
            shrink(opened.writer, sync=sync)
    except BaseException:
        opened.close()
        raise
    return opened


def _open(path: Path, form: BlockFormat, size: int, *, readonly: bool, sync: bool) -> Opened:
    slab = Slab(path / SLAB, form, readonly=readonly, sync=sync)
    try:
        return Opened(slab, Index(path / INDEX, readonly=readonly, sync=sync, wal_nbytes=wal_nbytes(size)))
    except BaseException:
        slab.close()
        raise


def read_format(path: Path) -> BlockFormat:
    """Return the format of the blocks that a folder holds."""
    check_folder(path)
    slab = path / SLAB
    if check_file(slab) is None:
        raise CorruptFile(f"{path} is not a folder of a disk tier: it has no file {SLAB}")
    file = File(slab, readonly=True)
    try:
        return BlockFormat.from_header(file.head(HEADER_BYTES), str(slab))
    finally:
        file.close()
