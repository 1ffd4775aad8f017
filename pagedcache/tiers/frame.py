"""What a block is on a server: a small header that names and checksums it, then its records.

All numbers are little-endian::

     0   8  magic, b"pcblock\\n"
     8   4  version, 1
    12   4  n, the number of layers
    16  32  SHA-256 of BlockFormat.header()
    48  32  digest of the block
    80   8  bytes of the records, all together
    88  4n  CRC-32C of the record of each layer
    88+4n 4 CRC-32C of all that stands before
    92+4n   the records, first layer to last
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache.tiers._checked import crc32c
from pagedcache.tiers.block_format import BlockFormat

__all__ = ["Frame", "Reading"]

MAGIC = b"pcblock\n"
VERSION = 1
DIGEST_BYTES = 32
_FIXED = struct.Struct("<8sII32s32sQ")


class Frame:
    """Headers of blocks of one format.

    Attributes
    ----------
    nbytes : int
        Of a header.
    format_id : str
        The first 16 hexadecimal digits of the SHA-256 of the format's header, which stand in every key.

    Examples
    --------
    >>> from pagedcache import CacheSpec
    >>> form = BlockFormat.of(CacheSpec(layers=2, kv_heads=1, head_dim=8, block_size=4, fingerprint=b"tiny"))
    >>> frame = Frame(form)
    >>> frame.nbytes, frame.format_id
    (100, 'b4d63bcef93d0e9b')
    >>> header = frame.header(bytes(32), np.array([1, 2], np.uint32))
    >>> frame.checksums(header, bytes(32)).tolist()
    [1, 2]
    >>> frame.checksums(header, bytes(31) + b"x") is None
    True
    """

    def __init__(self, form: BlockFormat) -> None:
        self._format = hashlib.sha256(form.header()).digest()
        self._layers = form.layers
        self._payload = form.block_nbytes
        self.format_id = self._format.hex()[:16]
        self.nbytes = _FIXED.size + 4 * form.layers + 4

    def names(self, prefix: str, keys: Sequence[bytes]) -> list[str]:
        """Return what the keys are on the server, ``<prefix>:<format id>:<digest>``."""
        for key in keys:
            if len(key) != DIGEST_BYTES:
                raise ValueError(f"a key has {len(key)} bytes; a digest has {DIGEST_BYTES}")
        return [f"{prefix}:{self.format_id}:{key.hex()}" for key in keys]

    def header(self, digest: bytes, crcs: NDArray[np.uint32]) -> bytes:
        """Return the header of a block.

        Parameters
        ----------
        digest : bytes
            The block's key, 32 bytes.
        crcs : uint32 [layers]
            CRC-32C of its records.
        """
        start = self._start(digest) + crcs.astype("<u4").tobytes()
        return start + crc32c(start).to_bytes(4, "little")

    def checksums(self, header: object, digest: bytes) -> NDArray[np.uint32] | None:
        """Return the CRC-32C of the records, uint32 [layers]; None where this is not the header of that block."""
        if not isinstance(header, bytes) or len(header) != self.nbytes:
            return None
        if not header.startswith(self._start(digest)) or crc32c(header[:-4]) != int.from_bytes(header[-4:], "little"):
            return None
        return np.frombuffer(header, "<u4", self._layers, _FIXED.size).astype(np.uint32)

    def _start(self, digest: bytes) -> bytes:
        """Return what two headers of one block have in common."""
        return _FIXED.pack(MAGIC, VERSION, self._layers, self._format, digest, self._payload)


@dataclass(eq=False, slots=True)
class Reading:
    """What a load from a server knows of its blocks."""

    names: list[Any]  # keys on the server, as its client takes them
    crcs: NDArray[np.uint32]  # [blocks, layers]
    right: int  # leading blocks of which nothing was found wrong
    used: bool = False  # something was loaded
