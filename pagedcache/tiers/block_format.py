"""What stored blocks are: the header that every file and server key carries, and that is compared before any use.

Bytes of a block in a tier are its records of all layers, first to last. The record of a layer is K, V and, for int8
and float8_e4m3, K scales and V scales (float32, little-endian); K is ``[block_size, kv_heads, head_dim]`` whatever
layout the pool has. Each record has a CRC-32C of its own, so that a layer can be used while the next one is read.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from pagedcache._dtypes import ITEM_BYTES, SCALED_DTYPES
from pagedcache.errors import CorruptFile, ForeignFormat
from pagedcache.spec import MAX_BLOCK_SIZE, CacheSpec
from pagedcache.tiers._checked import crc32c

__all__ = ["HEADER_BYTES", "BlockFormat"]

MAGIC = b"pagedcache blocks\n"
VERSION = 1
HEADER_BYTES = 4096  # one page, so that the blocks behind it are aligned
MOST = 2**31 - 1  # of any number in a header


@dataclass(frozen=True)
class BlockFormat:
    """Identity and shape of stored blocks.

    Attributes
    ----------
    fingerprint : str
        ``CacheSpec.fingerprint`` in hexadecimal digits: weights, RoPE settings, adapter.
    dtype : str
        What K and V are stored as.
    layout : str
        Order of axes in a record; always ``"NHD"``.
    block_size : int
        Tokens per block.
    first_layer, layers, first_head, kv_heads : int
        Which part of the model: where layers or heads are divided among machines, each stores its own.
    head_dim, v_head_dim : int
        Sizes of a K head and of a V head.
    version : int
        Of the format itself.

    Examples
    --------
    >>> from pagedcache import CacheSpec
    >>> spec = CacheSpec(layers=2, kv_heads=1, head_dim=8, block_size=4, fingerprint=b"tiny")
    >>> form = BlockFormat.of(spec)
    >>> form.record_nbytes, form.block_nbytes
    (256, 512)
    >>> BlockFormat.from_header(form.header()) == form
    True
    """

    fingerprint: str
    dtype: str
    layout: str
    block_size: int
    first_layer: int
    layers: int
    first_head: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    version: int = VERSION

    @classmethod
    def of(cls, spec: CacheSpec, *, first_layer: int = 0, first_head: int = 0) -> Self:
        """Return the format of a cache's blocks.

        Raises
        ------
        ValueError
            The spec has no fingerprint, without which blocks of one model could be taken for another's.
        NotImplementedError
            The spec has several layer groups, or layers that read another's K and V.
        """
        if not spec.fingerprint:
            raise ValueError(
                "the spec has no fingerprint, so blocks of another model could be taken for this one's: give "
                "CacheSpec(fingerprint=...), bytes that stand for weights, RoPE settings and adapter"
            )
        if spec.num_groups > 1:
            raise NotImplementedError(f"the spec has {spec.num_groups} layer groups; tiers store blocks of one")
        if spec.shared_layers:
            raise NotImplementedError(f"the spec has shared_layers={spec.shared_layers!r}; tiers know of none")
        return cls(
            spec.fingerprint.hex(), spec.dtype, "NHD", spec.block_size, first_layer, spec.layers, first_head,
            spec.kv_heads, spec.head_dim, spec.v_head_dim,
        )  # fmt: skip

    @property
    def record_nbytes(self) -> int:
        """Bytes of a block in one layer."""
        return sum(self.piece_nbytes)

    @property
    def piece_nbytes(self) -> tuple[int, ...]:
        """Bytes of K, V and, where the dtype has them, K scales and V scales of a block in one layer."""
        heads = self.block_size * self.kv_heads
        item = ITEM_BYTES[self.dtype]
        scales = (heads * 4, heads * 4) if self.dtype in SCALED_DTYPES else ()
        return heads * self.head_dim * item, heads * self.v_head_dim * item, *scales

    @property
    def block_nbytes(self) -> int:
        """Bytes of a block in all layers."""
        return self.layers * self.record_nbytes

    def require(self, other: "BlockFormat", where: str) -> None:
        """Raise ForeignFormat, naming the field, unless blocks of `other`, found `where`, are of this format."""
        for name in ("version", *(field.name for field in fields(self))):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise ForeignFormat(f"{where} holds blocks with {name} {theirs!r}; this cache has {ours!r}")

    def header(self) -> bytes:
        """Return the header: magic, length and CRC-32C (uint32, little-endian) of what follows, and that, as JSON."""
        text = json.dumps(asdict(self), sort_keys=True).encode()
        head = MAGIC + len(text).to_bytes(4, "little") + crc32c(text).to_bytes(4, "little") + text
        if len(head) > HEADER_BYTES:
            raise ValueError(f"the fingerprint makes a header of {len(head)} bytes; {HEADER_BYTES} are the limit")
        return head.ljust(HEADER_BYTES, b"\0")

    @classmethod
    def from_header(cls, head: bytes, where: str = "the header") -> Self:
        """Return the format that `header` wrote.

        Raises
        ------
        CorruptFile
            It is not a header, or a damaged one.
        ForeignFormat
            It is of a version that this release does not know.
        """
        if not head.startswith(MAGIC):
            raise CorruptFile(f"{where} does not begin as stored blocks do")
        begin = len(MAGIC) + 8
        size = int.from_bytes(head[begin - 8 : begin - 4], "little")
        text = head[begin : begin + size]
        if size > HEADER_BYTES - begin or len(text) < size:
            raise CorruptFile(f"{where} has a header of {size} bytes, of which {len(text)} are there")
        if crc32c(text) != int.from_bytes(head[begin - 4 : begin], "little"):
            raise CorruptFile(f"{where} has a damaged header: its checksum is wrong")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CorruptFile(f"{where} has a header that is not JSON: {error}") from None
        return cls._checked(values, where)

    @classmethod
    def _checked(cls, values: Any, where: str) -> Self:
        """Return what the JSON says, unless it makes no sense; it may be a stranger's."""
        version = values.get("version") if isinstance(values, dict) else None
        if version != VERSION:
            raise ForeignFormat(f"{where} is of format version {version!r}; this release knows version {VERSION}")
        for field in fields(cls):
            value = values.get(field.name)
            least = 0 if field.name.startswith("first_") else 1
            most = MAX_BLOCK_SIZE if field.name == "block_size" else MOST
            right = isinstance(value, str) if field.type is str else type(value) is int and least <= value <= most
            if not right:
                raise CorruptFile(f"{where} has a header with {field.name} {value!r}")
        if set(values) != {field.name for field in fields(cls)} or values["layout"] != "NHD":
            raise CorruptFile(f"{where} has a header with fields {sorted(values)}, layout {values['layout']!r}")
        if values["dtype"] not in ITEM_BYTES:
            raise CorruptFile(f"{where} has a header with dtype {values['dtype']!r}")
        return cls(**values)
