"""Lines of a file from a stranger: plain or gzip, and no more of them than is sane."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

__all__ = ["GZIP_MAGIC", "MAX_LINE", "head", "lines", "refuse"]

GZIP_MAGIC = b"\x1f\x8b"
MAX_LINE = 4 * 2**20  # bytes: a prompt of a million tokens in blocks of 16, with digests for names, is below it


def refuse(path: Path, line: int, what: str) -> NoReturn:
    """Raise ValueError with the place in the file and what is wrong there."""
    raise ValueError(f"{path}, line {line}: {what}")


def head(path: Path) -> bytes:
    """Return the first bytes of a file, by which its kind is told."""
    with path.open("rb") as file:
        return file.read(4)


def lines(path: Path, max_bytes: int) -> Iterator[tuple[int, str]]:
    """Yield line numbers, from 1 on, and lines that are not blank, stripped.

    Raises
    ------
    ValueError
        More than `max_bytes` in all or MAX_LINE in a line (counted after decompression: a few KiB of gzip can stand for
        many GiB), damaged gzip, or what is not UTF-8; the message names file and line.
    """
    number = total = 0
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
        file.seek(0)
        source = gzip.GzipFile(fileobj=file) if packed else file
        while True:
            number += 1
            try:
                line = source.readline(min(MAX_LINE, max_bytes - total) + 1)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                refuse(path, number, f"the gzip data is damaged: {error}")
            if not line:
                return
            total += len(line)
            if total > max_bytes:
                refuse(path, number, f"the text is longer than {max_bytes} bytes; raise max_bytes for a trace so large")
            if len(line) > MAX_LINE:
                refuse(path, number, f"the line is longer than {MAX_LINE} bytes")
            try:
                text = line.decode().strip()
            except UnicodeDecodeError as error:
                refuse(path, number, f"not UTF-8 text: {error.reason} at byte {error.start}")
            if text:
                yield number, text.removeprefix("\ufeff")
