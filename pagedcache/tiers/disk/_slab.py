"""The slab: one file of equal slots, each with a head that says what is in it.

    page 0          BlockFormat.header()
    page 1 ...      slot 0: head | records of all layers | zeros up to the next page
                    slot 1 ...

A head is compared with what the index says and has the checksums of the records; so neither an index that is wrong,
nor a slot written half, nor a slot that was given to another block can pass for the block that is asked for.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pagedcache.errors import TierError
from pagedcache.tiers._checked import checksums
from pagedcache.tiers.block_format import HEADER_BYTES, BlockFormat
from pagedcache.tiers.disk._files import File, check_file, put_file
from pagedcache.tiers.protocol import Places

__all__ = ["PAGE", "Slab", "head_type", "slot_nbytes"]

PAGE = 4096  # bytes; slots begin and end at pages, so that no page is written half
MAGIC = int.from_bytes(b"pc slot1", "little")
FIXED = 56  # bytes of a head before the checksums of the records
CRC_AT = 52  # the head's own, in the last four of these
MAX_LAYERS = 2**16
MAX_BLOCK = 2**40  # bytes; what claims more is none of ours

Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


def head_type(layers: int) -> np.dtype[np.void]:
    """Return the layout of a slot's head; all numbers are little-endian."""
    return np.dtype(
        [
            ("magic", "<u8"),
            ("slot", "<u8"),
            ("digest", "V32"),
            ("layers", "<u4"),
            ("crc", "<u4"),  # CRC-32C of the head without these four bytes
            ("records", "<u4", (layers,)),  # CRC-32C of each layer's record
        ]
    )


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def slot_nbytes(form: BlockFormat) -> int:
    """Bytes of a slot, head and padding included."""
    return _pages(FIXED + 4 * form.layers) + _pages(form.block_nbytes)


class Slab:
    """The slab file of a tier.

    Parameters
    ----------
    path : Path
    form : BlockFormat
        What its blocks have to be; ForeignFormat where they are not.
    readonly : bool
    sync : bool
        Whether creating it is made durable.
    """

    def __init__(self, path: Path, form: BlockFormat, *, readonly: bool, sync: bool) -> None:
        if form.layers > MAX_LAYERS or form.block_nbytes > MAX_BLOCK:
            raise TierError(
                f"blocks of {form.layers} layers and {form.block_nbytes} bytes; the limits are {MAX_LAYERS} and "
                f"{MAX_BLOCK}"
            )
        if check_file(path) is None:
            if readonly:
                raise TierError(f"{path} is not there: only a writer creates it")
            put_file(path, form.header(), sync=sync)
        self.form = form
        self.slot_nbytes = slot_nbytes(form)
        self._head_nbytes = _pages(FIXED + 4 * form.layers)
        self._pad = _pages(form.block_nbytes) - form.block_nbytes
        self._file = File(path, readonly=readonly)
        try:
            form.require(BlockFormat.from_header(self._file.head(HEADER_BYTES), str(path)), str(path))
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> Path:
        """Of the file."""
        return self._file.path

    @property
    def count(self) -> int:
        """Slots that the file has room for."""
        return max(0, self._file.size - HEADER_BYTES) // self.slot_nbytes

    def nbytes_of(self, count: int) -> int:
        """Bytes of a file of so many slots."""
        return HEADER_BYTES + count * self.slot_nbytes

    def resize(self, count: int) -> None:
        """Have room for `count` slots."""
        size = self.nbytes_of(count)
        if size > self._file.size:
            self._file.grow(size)
        else:
            self._file.truncate(size)

    def heads(self, slots: Numbers, digests: Sequence[bytes]) -> tuple[int, NDArray[np.uint32]]:
        """Read the heads of slots; how many leading ones hold these digests, and the checksums of their records."""
        kind = head_type(self.form.layers)
        raw = np.empty((len(slots), kind.itemsize), np.uint8)
        count = self._file.read_rows(raw, self._begin(slots))
        raw = raw[:count]
        heads = raw.view(kind)[:, 0]
        wanted = np.frombuffer(b"".join(digests[:count]), np.uint8).reshape(count, 32)
        right = (
            (heads["magic"] == MAGIC)
            & (heads["slot"] == slots[:count].astype(np.uint64))
            & (raw[:, 16:48] == wanted).all(axis=1)
            & (heads["layers"] == self.form.layers)
            & (heads["crc"] == _checksums_of(raw))
        )
        leading = count if right.all() else int(right.argmin())
        return leading, np.ascontiguousarray(heads["records"][:leading])

    def read(self, layers: range, slots: Numbers, crcs: NDArray[np.uint32], places: Places) -> int:
        """Fill the rows of `places` with records of some layers; how many leading blocks are right.

        A record that the medium does not give is not right; no error is raised.
        """
        if layers.step != 1:
            return min((self.read(range(i, i + 1), slots, crcs, places) for i in layers), default=len(slots))
        begin = self._begin(slots) + (self._head_nbytes + layers.start * self.form.record_nbytes)
        arrays, rows = [places.layers[i] for i in layers], places.rows
        expected = crcs[:, layers.start : layers.start + len(layers)]
        try:
            return self._file.read_blocks(begin, arrays, rows, expected)
        except OSError:
            return self._read_singly(begin, arrays, rows, expected)

    def _read_singly(
        self, begin: Numbers, arrays: Sequence[Sequence[Bytes]], rows: Numbers, expected: NDArray[np.uint32]
    ) -> int:
        """As `read`, up to the block that the medium does not give."""
        for one in range(len(begin)):
            only = slice(one, one + 1)
            try:
                if not self._file.read_blocks(begin[only], arrays, rows[only], expected[only]):
                    return one
            except OSError:
                return one
        return len(begin)

    def write(self, slots: Numbers, digests: Sequence[bytes], places: Places) -> None:
        """Fill slots: records first, then the heads with their checksums."""
        begin = self._begin(slots)
        crcs = self._file.write_checked(begin + self._head_nbytes, places.layers, places.rows, self._pad)
        kind = head_type(self.form.layers)
        raw = np.zeros((len(slots), self._head_nbytes), np.uint8)
        used = np.zeros((len(slots), kind.itemsize), np.uint8)
        heads = used.view(kind)[:, 0]
        heads["magic"], heads["slot"], heads["layers"], heads["records"] = MAGIC, slots, self.form.layers, crcs
        used[:, 16:48] = np.frombuffer(b"".join(digests), np.uint8).reshape(len(slots), 32)
        heads["crc"] = _checksums_of(used)
        raw[:, : kind.itemsize] = used
        self._file.write_rows(raw, begin)

    def sync(self) -> None:
        """Make durable what was written."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _begin(self, slots: Numbers) -> Numbers:
        return HEADER_BYTES + slots * self.slot_nbytes


def _checksums_of(heads: Bytes) -> NDArray[np.uint32]:
    """CRC-32C of heads, without the place where it stands."""
    return checksums([heads[:, :CRC_AT], heads[:, FIXED:]], np.arange(len(heads)))
