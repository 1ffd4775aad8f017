"""Reading a GGUF model file that may come from a stranger.

A GGUF file is a header, metadata values, tensor descriptions and the bytes of the tensors, little-endian::

    magic, version, number of tensors, number of metadata values
    key, type, value                        for each metadata value
    name, rank, dimensions, dtype, offset   for each tensor
    padding to `general.alignment`
    the tensors, each at its offset

Every count, length, offset and dtype is compared with what the file can hold, and with the caps below, before
anything of that size is allocated; the metadata take memory of at most twenty times their size in the file. Nothing
in a file is executed. Plain reads instead of a memory map make a file that shrinks meanwhile an error and no crash.

The `gguf` package turns quantised bytes into float32. Its reader is not used: it checks none of this, and is slow with
the strings of a tokenizer.
"""

import math
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from pagedcache.errors import UnsupportedModel

MAX_METADATA = 65_536  # values in one file
MAX_TENSORS = 65_536  # tensors in one file
MAX_NAME_BYTES = 65_535  # one metadata key or tensor name, the format's own limit
MAX_STRING_BYTES = 16 << 20  # one string value
MAX_ARRAY_ITEMS = 16 << 20  # one array value
MAX_RANK = 4  # dimensions of one tensor
MAX_ALIGNMENT = 1 << 20  # bytes

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one tensor lies in the file."""

    name: str
    shape: tuple[int, ...]  # NumPy's order, the last axis is contiguous
    dtype: int  # a gguf.GGMLQuantizationType
    offset: int  # bytes from the start of the file, or of the tensors until GGUFFile has placed it
    nbytes: int  # bytes in the file


class GGUFFile:
    """The metadata of a GGUF file, and its tensors as float32 arrays; a context manager.

    Parameters
    ----------
    path : str or path-like
        A regular file, GGUF version 2 or 3, little-endian.

    Attributes
    ----------
    metadata : dict of str to int, float, bool, str or list of these
        Every metadata value.
    tensors : dict of str to Tensor
        Every tensor's shape, dtype and place.

    Raises
    ------
    UnsupportedModel
        The file is no such GGUF, is damaged, or exceeds one of this module's caps.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> GGUFFile("/dev/null")
    Traceback (most recent call last):
    pagedcache.errors.UnsupportedModel: /dev/null: not a regular file
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        self._file = _open_regular(self.path)
        try:
            self._read(_Fields(self.path, self._file))
        except BaseException:
            self._file.close()
            raise

    def float32(self, name: str) -> NDArray[np.float32]:
        """Read one tensor and dequantise it.

        Returns
        -------
        ndarray of float32, shape ``self.tensors[name].shape``
            It stays valid when the file is closed.
        """
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        self._file.seek(tensor.offset)
        raw = np.fromfile(self._file, np.uint8, tensor.nbytes)
        if raw.size != tensor.nbytes:
            raise UnsupportedModel(f"{self.path}: tensor {name!r} ends after {raw.size} of {tensor.nbytes} bytes")
        # gguf works on 16 rows at a time, slow where rows are short. Quantised blocks never cross rows, so up to 16
        # rows are passed as one.
        rows = math.prod(tensor.shape[:-1])
        raw = raw.reshape(rows // math.gcd(rows, 16), -1)
        try:
            return dequantize(raw, GGMLQuantizationType(tensor.dtype)).reshape(tensor.shape)
        except NotImplementedError as error:
            raise UnsupportedModel(f"{self.path}: tensor {name!r}: {error}") from None

    def close(self) -> None:
        """Close the file; the metadata and all arrays already read stay."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self, fields: "_Fields") -> None:
        magic = fields.take(4, "the magic")
        if magic != b"GGUF":
            raise UnsupportedModel(f"{self.path}: not a GGUF file, it begins with {magic!r}")
        version = fields.integer("<I", "the version")
        if version not in (2, 3):
            raise UnsupportedModel(f"{self.path}: GGUF version {version}; little-endian 2 and 3 can be read")
        num_tensors = fields.count("tensors", MAX_TENSORS, item_bytes=24)
        num_metadata = fields.count("metadata values", MAX_METADATA, item_bytes=13)
        for _ in range(num_metadata):
            key = fields.string("a metadata key", MAX_NAME_BYTES)
            if key in self.metadata:
                raise fields.damage(f"the metadata key {key!r} occurs twice")
            self.metadata[key] = fields.value(key)
        tensors = [fields.tensor() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise fields.damage(f"general.alignment is {alignment!r}; powers of two up to {MAX_ALIGNMENT} are legal")
        start = end = -(-self._file.tell() // alignment) * alignment
        for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
            offset = start + tensor.offset
            # Overlapping tensors would let a small file stand for any amount of memory.
            if tensor.offset % alignment or offset < end or offset + tensor.nbytes > fields.size:
                raise fields.damage(
                    f"tensor {tensor.name!r} ({tensor.nbytes} bytes at {offset}) overlaps another one, is not aligned "
                    f"to {alignment} bytes or reaches beyond the file's {fields.size} bytes"
                )
            if tensor.name in self.tensors:
                raise fields.damage(f"the tensor name {tensor.name!r} occurs twice")
            self.tensors[tensor.name] = Tensor(tensor.name, tensor.shape, tensor.dtype, offset, tensor.nbytes)
            end = offset + tensor.nbytes


class _Fields:
    """Reads a GGUF header field by field, never more than the file still has."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        from gguf.constants import GGML_QUANT_SIZES

        self.path = path
        self.size = os.fstat(file.fileno()).st_size  # bytes
        self._file = file
        self._left = self.size  # bytes not read yet
        self._quant_sizes = {int(dtype): size for dtype, size in GGML_QUANT_SIZES.items()}  # (values, bytes) per block

    def damage(self, what: str) -> UnsupportedModel:
        """Make the exception for a file that contradicts itself."""
        return UnsupportedModel(f"{self.path}: damaged GGUF: {what}")

    def take(self, nbytes: int, what: str) -> bytes:
        """Read exactly `nbytes`."""
        if nbytes > self._left:
            raise self.damage(f"{what} needs {nbytes} bytes where {self._left} are left")
        self._left -= nbytes
        data = self._file.read(nbytes)
        if len(data) != nbytes:
            raise self.damage(f"the file shrank while {what} was read")
        return data

    def integer(self, code: str, what: str) -> int:
        """Read one integer with the given struct code."""
        value: int = struct.unpack(code, self.take(struct.calcsize(code), what))[0]
        return value

    def count(self, what: str, cap: int, *, item_bytes: int) -> int:
        """Read a 64-bit count of things that take at least `item_bytes` each."""
        count = self.integer("<Q", f"the number of {what}")
        if count > cap:
            raise UnsupportedModel(f"{self.path}: {count} {what}; at most {cap} are read")
        if count * item_bytes > self._left:
            raise self.damage(f"{count} {what} cannot lie in the {self._left} bytes that are left")
        return count

    def string(self, what: str, cap: int) -> str:
        """Read a length and that many bytes of UTF-8."""
        length = self.count(f"bytes in {what}", cap, item_bytes=1)
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError as error:
            raise self.damage(f"{what} is not UTF-8: {error.reason}") from None

    def value(self, key: str) -> Any:
        """Read a type and a metadata value of that type."""
        kind = self.integer("<I", f"the type of {key!r}")
        if kind == _STRING:
            return self.string(repr(key), MAX_STRING_BYTES)
        if kind != _ARRAY:
            return self._numbers(kind, 1, key)[0]
        kind = self.integer("<I", f"the item type of {key!r}")
        what = f"items in {key!r}"
        if kind == _STRING:
            count = self.count(what, MAX_ARRAY_ITEMS, item_bytes=8)
            return [self.string(what, MAX_STRING_BYTES) for _ in range(count)]
        return self._numbers(kind, self.count(what, MAX_ARRAY_ITEMS, item_bytes=1), key)

    def _numbers(self, kind: int, count: int, key: str) -> list[Any]:
        if kind not in _NUMBERS:
            raise self.damage(f"{key!r} has value type {kind}; numbers, strings and flat arrays of them are read")
        dtype = np.dtype(_NUMBERS[kind])
        numbers = np.frombuffer(self.take(count * dtype.itemsize, repr(key)), dtype)
        return list(numbers.astype(bool).tolist() if kind == _BOOL else numbers.tolist())

    def tensor(self) -> Tensor:
        """Read one tensor description; its offset still counts from the first tensor."""
        name = self.string("a tensor name", MAX_NAME_BYTES)
        rank = self.integer("<I", f"the rank of {name!r}")
        if not 1 <= rank <= MAX_RANK:
            raise self.damage(f"tensor {name!r} has rank {rank}; 1 to {MAX_RANK} are legal")
        shape = struct.unpack(f"<{rank}Q", self.take(8 * rank, f"the shape of {name!r}"))[::-1]
        dtype = self.integer("<I", f"the dtype of {name!r}")
        if dtype not in self._quant_sizes:
            raise UnsupportedModel(f"{self.path}: tensor {name!r} has GGML dtype {dtype}, unknown to the gguf package")
        block_values, block_bytes = self._quant_sizes[dtype]
        if 0 in shape or shape[-1] % block_values:
            raise self.damage(f"tensor {name!r} of shape {shape} does not consist of blocks of {block_values} values")
        nbytes = math.prod(shape) // block_values * block_bytes
        return Tensor(name, shape, dtype, self.integer("<Q", f"the offset of {name!r}"), nbytes)


def _open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, but no pipe or device, on which reading could wait or never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UnsupportedModel(f"{path}: not a regular file")
    return file
