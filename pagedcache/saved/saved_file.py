"""Files of saved sequences and prefix caches: header page, records, tables, manifest, footer.

``docs/saved_files.md`` has the format byte by byte. Whatever a file says is compared with its size and with stated
limits before memory is taken for it, and every byte is covered by a CRC-32C. Offsets have 64 bits.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from pagedcache.core._convert import int32_array
from pagedcache.errors import CorruptFile, ForeignFormat
from pagedcache.saved._manifest import MOST_BYTES, Manifest, SavedPath
from pagedcache.saved._safe_files import reading, write_all
from pagedcache.tiers._checked import checksums, crc32c
from pagedcache.tiers.block_format import HEADER_BYTES, BlockFormat

__all__ = ["SavedFile", "SavedFileWriter"]

MAGIC = b"pagedcache saved"
VERSION = 1
FOOTER = Struct("<16sIIQQQIIII")  # magic, version, 0, blocks, bytes of tables and manifest, four CRC-32C
CHUNK = 2**23  # bytes of records read or written at once, or one block
MOST_BLOCKS = 2**31 - 2

Records = NDArray[np.uint8]  # [blocks, layers, record]


class SavedFileWriter:
    """Writes one file: records as they come, then all that tells what they are.

    Parameters
    ----------
    fd : int
        An empty file.
    form : BlockFormat
        Of the records.
    """

    def __init__(self, fd: int, form: BlockFormat) -> None:
        self._fd, self._form = fd, form
        self._crcs: list[NDArray[np.uint32]] = []
        self._header = form.header()
        write_all(fd, memoryview(self._header))

    def append(self, records: Records) -> None:
        """Write some blocks behind those written before."""
        rows = np.ascontiguousarray(records).reshape(-1, self._form.record_nbytes)
        self._crcs.append(checksums([rows], np.arange(len(rows))))
        write_all(self._fd, rows.data)

    def finish(self, tokens: NDArray[np.int32], manifest: Manifest) -> None:
        """Write the rest; tokens: int32 [blocks, block_size], -1 where there are none."""
        crcs = np.concatenate([np.empty(0, np.uint32), *self._crcs])
        blocks = [path.blocks.ravel() for path in manifest.paths]
        places = np.concatenate([np.empty(0, np.int32), *blocks])
        parts = crcs.astype("<u4"), tokens.astype("<i4"), places.astype("<i4")
        tables = b"".join(part.tobytes() for part in parts)
        text = manifest.text()
        if len(text) > MOST_BYTES:
            raise ValueError(f"the manifest takes {len(text)} bytes; {MOST_BYTES} are the limit: save fewer at once")
        sums = crc32c(self._header), crc32c(tables), crc32c(text)
        footer = FOOTER.pack(MAGIC, VERSION, 0, len(tokens), len(tables), len(text), *sums, 0)[:-4]
        for part in (tables, text, footer, crc32c(footer).to_bytes(4, "little")):
            write_all(self._fd, memoryview(part))


@dataclass(slots=True)
class SavedFile:
    """A saved file, open, everything but its records read and checked; `open` makes it.

    Attributes
    ----------
    where : str
        For messages.
    form : BlockFormat
        Of the records; its layers are those of the largest layer group.
    manifest : Manifest
    tokens : int32 [blocks, block_size]
        Token ids by record; -1 where there are none.
    """

    where: str
    form: BlockFormat
    manifest: Manifest
    tokens: NDArray[np.int32]
    _crcs: NDArray[np.uint32]  # [blocks, layers]
    _fd: int

    @classmethod
    @contextmanager
    def open(cls, path: str | os.PathLike[str]) -> Iterator["SavedFile"]:
        """Yield the file.

        Raises
        ------
        CorruptFile
            It is damaged, cut short, or none of ours; the message says what is wrong.
        ForeignFormat
            It is of a version that this release does not know.
        TierError, OSError
            It is a symbolic link, its folder is everybody's, or it cannot be read.
        """
        with reading(Path(path)) as fd:
            yield cls._read(fd, str(path))

    @classmethod
    def _read(cls, fd: int, where: str) -> "SavedFile":
        size = os.fstat(fd).st_size
        if size < HEADER_BYTES + FOOTER.size:
            raise CorruptFile(f"{where} has {size} bytes; a saved file has at least {HEADER_BYTES + FOOTER.size}")
        begin = size - FOOTER.size
        blocks, tables_size, text_size, crcs = _footer(_read_at(fd, begin, FOOTER.size, where), where)
        head = _read_at(fd, 0, HEADER_BYTES, where)
        form = BlockFormat.from_header(head, where)
        _require_crc(head, crcs[0], f"{where} has a damaged header")
        told = HEADER_BYTES + blocks * form.block_nbytes + tables_size + text_size + FOOTER.size
        if told != size:
            raise CorruptFile(f"{where} has {size} bytes, and tells of {told}: it was cut short, or has grown")
        entries = tables_size - 4 * blocks * (form.layers + form.block_size)
        if entries < 0 or entries % 4 or text_size > MOST_BYTES:
            raise CorruptFile(f"{where} has {blocks} blocks, tables of {tables_size} bytes, a manifest of {text_size}")
        tables = _read_at(fd, begin - text_size - tables_size, tables_size, where)
        _require_crc(tables, crcs[1], f"{where} has damaged tables")
        text = _read_at(fd, begin - text_size, text_size, where)
        _require_crc(text, crcs[2], f"{where} has a damaged manifest")
        sums = np.frombuffer(tables, "<u4", blocks * form.layers).astype(np.uint32).reshape(blocks, form.layers)
        numbers = int32_array(np.frombuffer(tables, "<i4")[sums.size :], "tables")
        tokens = numbers[: blocks * form.block_size].reshape(blocks, form.block_size)
        places = numbers[tokens.size :]
        if len(places) and not -1 <= places.min() <= places.max() < blocks:
            raise CorruptFile(f"{where} has tables that name blocks {places.min()} to {places.max()} of {blocks}")
        manifest = Manifest.read(text, places, form.block_size, where)
        if max(group.layers for group in manifest.groups) != form.layers:
            raise CorruptFile(f"{where} has records of {form.layers} layers, and layer groups of other sizes")
        saved = cls(where, form, manifest, tokens, sums, fd)
        for path in manifest.paths:
            if path.known and len(saved.tokens_of(path)) and saved.tokens_of(path).min() < 0:
                raise CorruptFile(f"{where} has a path without the tokens that it should have")
        return saved

    @property
    def num_blocks(self) -> int:
        """How many records there are."""
        return len(self.tokens)

    def tokens_of(self, path: SavedPath) -> NDArray[np.int32]:
        """Return the token ids of a path whose tokens are known."""
        return self.tokens[path.blocks[:, 0]].ravel()[: path.position]

    def records(self, numbers: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.int32], Records]]:
        """Yield records, verified, some at a time: their numbers, ascending, and their bytes.

        Raises
        ------
        CorruptFile
            One is damaged; those yielded before are not.
        """
        most = max(1, CHUNK // self.form.block_nbytes)
        ordered = np.unique(numbers)
        ends = np.flatnonzero(np.diff(ordered) != 1) + 1
        for run in np.split(ordered, ends):
            for first in range(0, len(run), most):
                some = run[first : first + most]
                yield some, self._run(int(some[0]), len(some))

    def verify(self) -> None:
        """Raise CorruptFile unless all records are as they were written."""
        for _ in self.records(np.arange(self.num_blocks, dtype=np.int32)):
            pass

    def _run(self, first: int, count: int) -> Records:
        """Return records that follow each other in the file."""
        form = self.form
        records = np.empty((count, form.layers, form.record_nbytes), np.uint8)
        _read_into(self._fd, HEADER_BYTES + first * form.block_nbytes, records.data.cast("B"), self.where)
        found = checksums([records.reshape(-1, form.record_nbytes)], np.arange(count * form.layers))
        wrong = np.argwhere(found.reshape(count, form.layers) != self._crcs[first : first + count])
        if len(wrong):
            block, layer = wrong[0].tolist()
            raise CorruptFile(f"{self.where} has a damaged record: block {first + block}, layer {layer}")
        return records


def _footer(data: bytes, where: str) -> tuple[int, int, int, tuple[int, int, int]]:
    """Return the blocks, the bytes of tables and manifest, and the CRC-32C of header, tables and manifest."""
    magic, version, zero, blocks, tables, text, *crcs = FOOTER.unpack(data)
    if magic != MAGIC:
        raise CorruptFile(f"{where} does not end as a saved file does: it was cut short, or is none")
    if crc32c(data[:-4]) != crcs[3]:
        raise CorruptFile(f"{where} has a damaged footer: its checksum is wrong")
    if version != VERSION or zero:
        raise ForeignFormat(f"{where} is a saved file of version {version}; this release knows version {VERSION}")
    if blocks > MOST_BLOCKS:
        raise CorruptFile(f"{where} tells of {blocks} blocks; {MOST_BLOCKS} are the limit")
    return blocks, tables, text, (crcs[0], crcs[1], crcs[2])


def _require_crc(data: bytes, crc: int, otherwise: str) -> None:
    if crc32c(data) != crc:
        raise CorruptFile(f"{otherwise}: its checksum is wrong")


def _read_at(fd: int, offset: int, size: int, where: str) -> bytes:
    data = bytearray(size)
    _read_into(fd, offset, memoryview(data), where)
    return bytes(data)


def _read_into(fd: int, offset: int, view: memoryview, where: str) -> None:
    """Fill the view, however many calls it takes."""
    while view.nbytes:
        got = os.preadv(fd, [view], offset)
        if got == 0:
            raise CorruptFile(f"{where} ends at byte {offset}: it was cut short")
        view, offset = view[got:], offset + got
