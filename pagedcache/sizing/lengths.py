"""Lengths of a workload: how many tokens prompts and answers have. Files may come from strangers."""

import io
import os
import zipfile
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

__all__ = ["read_lengths"]

MAX_TOKENS = 1 << 20  # of one prompt or answer
MAX_PAIRS = 1 << 20
MAX_NBYTES = 64 << 20  # of a file


def read_lengths(path: str | os.PathLike[str] | None = None) -> NDArray[np.int64]:
    """Read the lengths of prompts and answers.

    Parameters
    ----------
    path : str or path-like, optional
        Text with ``prompt,output`` in each line (empty lines, lines that begin with ``#`` and a headline are
        skipped), or an ``.npz`` with the integer arrays ``prompt`` and ``output``. If not given, 256 pairs drawn
        from ShareGPT.

    Returns
    -------
    int64 [n, 2]
        Tokens of each prompt and of its answer, at least 1 each.

    Raises
    ------
    ValueError
        The file has none, or a line or an array that is not as above; the message names it.

    Examples
    --------
    >>> read_lengths().shape, read_lengths().mean(axis=0).round().tolist()
    ((256, 2), [236.0, 231.0])
    """
    if path is None:
        text = (resources.files("pagedcache.sizing") / "sharegpt_lengths.csv").read_text(encoding="utf-8")
        return _from_text(text, "sharegpt_lengths.csv")
    path = Path(path)
    with path.open("rb") as file:
        data = file.read(MAX_NBYTES + 1)
    if len(data) > MAX_NBYTES:
        raise ValueError(f"{path.name} is larger than {MAX_NBYTES >> 20} MiB; give a part of it")
    if path.suffix == ".npz":
        return _from_npz(data, path.name)
    try:
        return _from_text(data.decode("utf-8"), path.name)
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not text; lengths are lines of 'prompt,output', or an .npz") from None


def _from_text(text: str, name: str) -> NDArray[np.int64]:
    pairs: list[tuple[int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#") or (not pairs and line.replace(" ", "").lower() == "prompt,output"):
            continue
        cells = [cell.strip() for cell in line.split(",")]
        whole = len(cells) == 2 and all(cell.isascii() and cell.isdigit() and len(cell) < 10 for cell in cells)
        if not whole or not all(1 <= int(cell) <= MAX_TOKENS for cell in cells):
            raise ValueError(
                f"line {number} of {name} is {line[:40]!r}; it must be 'prompt,output', numbers from 1 to {MAX_TOKENS}"
            )
        if len(pairs) == MAX_PAIRS:
            raise ValueError(f"{name} has more than {MAX_PAIRS} pairs; give a part of it")
        pairs.append((int(cells[0]), int(cells[1])))
    if not pairs:
        raise ValueError(f"{name} has no lengths; give lines of 'prompt,output'")
    return np.array(pairs, np.int64)


def _from_npz(data: bytes, name: str) -> NDArray[np.int64]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            prompt, output = [_column(archive, column) for column in ("prompt", "output")]
    except Exception as error:  # a damaged archive makes zipfile and its decompressors raise a dozen kinds
        raise ValueError(f"{name} is no .npz with arrays 'prompt' and 'output': {error}") from None
    if len(prompt) != len(output):
        raise ValueError(f"{name} has {len(prompt)} prompts and {len(output)} outputs; they must be pairs")
    return np.stack([prompt, output], axis=1)


def _column(archive: zipfile.ZipFile, name: str) -> NDArray[np.int64]:
    """Read one array, checking what its header promises before anything of that size is made."""
    with archive.open(f"{name}.npy") as file:
        if (version := npy.read_magic(file)) != (1, 0):
            raise ValueError(f"array {name!r} has format version {version}; (1, 0) is read")
        shape, _, dtype = npy.read_array_header_1_0(file)
        if len(shape) != 1 or dtype.kind not in "iu" or not 0 < shape[0] <= MAX_PAIRS:
            raise ValueError(f"array {name!r} is {dtype} {shape}; integers [n] with n from 1 to {MAX_PAIRS} are needed")
        nbytes = shape[0] * dtype.itemsize
        data = file.read(nbytes)
    if len(data) != nbytes:
        raise ValueError(f"array {name!r} ends after {len(data)} of {nbytes} bytes")
    column = np.frombuffer(data, dtype)
    if not 1 <= int(column.min()) <= int(column.max()) <= MAX_TOKENS:
        raise ValueError(f"array {name!r} has {column.min()} to {column.max()}; it must be from 1 to {MAX_TOKENS}")
    return column.astype(np.int64)
