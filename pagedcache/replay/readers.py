"""Traces from files, told apart by what is in them.

================  =====================================================================================
Mooncake          JSON lines: timestamp (ms), input_length, output_length, hash_ids per 512 tokens
Qwen (Bailian)    JSON lines: chat_id, parent_chat_id, timestamp (s), input_length, output_length, type,
                  turn, hash_ids per 16 tokens
Azure             CSV: TIMESTAMP (date and time, or seconds), ContextTokens, GeneratedTokens
lengths           CSV with columns prompt and output, or num_prefill_tokens and num_decode_tokens; two numbers a
                  line without names of columns; or an .npz with arrays prompt and output
================  =====================================================================================

Text may be gzip. Files are hostile until read: every count is checked, and sizes are bounded before anything is kept.
"""

import json
import math
import re
import zipfile
import zlib
from array import array
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pagedcache.replay._lines import head, lines, refuse
from pagedcache.replay.trace import MAX_TOKENS, Trace

__all__ = ["MAX_BYTES", "read_trace"]

MAX_BYTES = 2**30  # of text, decompressed
MAX_BLOCKS = 2**24  # block ids of a trace: numbering them takes some 200 bytes each
MAX_ID = 128  # characters of a block id

PROMPTS = ("contexttokens", "num_prefill_tokens", "prompt", "input_length")
OUTPUTS = ("generatedtokens", "num_decode_tokens", "output", "output_length")


def read_trace(path: str | PathLike[str], *, block_size: int | None = None, max_bytes: int = MAX_BYTES) -> Trace:
    """Read a trace; see the module's table for what files may hold.

    Parameters
    ----------
    path : str or path
        Plain or gzip, whatever its name.
    block_size : int, optional
        Tokens of a block, where a JSON trace has other blocks than its kind's usual ones: 16 of a trace with a
        chat_id (Qwen), 512 of others (Mooncake).
    max_bytes : int
        Most bytes of text, after decompression.

    Raises
    ------
    ValueError
        The file is not such a trace; the message names file, line and value.
    OSError
        It cannot be read.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "trace.jsonl"
    >>> _ = path.write_text('{"timestamp": 1500, "input_length": 700, "output_length": 3, "hash_ids": [7, 9]}')
    >>> trace = read_trace(path)
    >>> trace.prompts, trace.blocks[0], trace.block_size
    (array([700]), array([0, 1], dtype=int32), 512)
    """
    path = Path(path)
    start = head(path)
    if start == b"PK\x03\x04":
        return _lengths_npz(path, max_bytes)
    first = next(lines(path, max_bytes), (1, ""))[1]
    if not first:
        raise ValueError(f"{path}: the file is empty")
    return _json_lines(path, max_bytes, block_size) if first.startswith("{") else _columns(path, max_bytes, first)


# -- JSON lines ---------------------------------------------------------------------------------------


def _json_lines(path: Path, max_bytes: int, block_size: int | None) -> Trace:
    requests = _Requests(path)
    names: dict[tuple[int, int | str], int] = {}  # (number of the block before, id) -> number
    flat, ends = array("i"), array("q")
    qwen: bool | None = None
    for number, text in lines(path, max_bytes):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            refuse(path, number, f"not JSON: {error}")
        if not isinstance(record, dict):
            refuse(path, number, f"{_short(record)} is not a JSON object")
        if qwen is None:
            qwen = "chat_id" in record
            size = block_size or (16 if qwen else 512)
        for name in ("timestamp", "input_length", "output_length", "hash_ids"):
            if name not in record:
                refuse(path, number, f"there is no {name}")
        prompt = requests.add(number, record["input_length"], record["output_length"])
        requests.add_time(number, record["timestamp"], 1.0 if qwen else 1e-3)
        ids = record["hash_ids"]
        if not isinstance(ids, list):
            refuse(path, number, f"hash_ids is {_short(ids)}; it must be a list")
        if len(ids) > -(-prompt // size):
            refuse(path, number, f"{len(ids)} hash_ids for {prompt} tokens; blocks of {size} are fewer")
        if len(flat) + len(ids) > MAX_BLOCKS:
            refuse(path, number, f"more than {MAX_BLOCKS} hash_ids so far")
        node = -1
        for i, name in enumerate(ids):
            if isinstance(name, bool) or not isinstance(name, int | str) or len(str(name)) > MAX_ID:
                refuse(path, number, f"hash_ids[{i}] is {_short(name)}; it must be an integer or a short text")
            node = names.setdefault((node, name), len(names))
            flat.append(node)
        ends.append(len(flat))
    blocks = np.split(np.array(flat, np.int32), np.array(ends, np.int64)[:-1])
    return requests.trace(tuple(blocks), size)


# -- columns ------------------------------------------------------------------------------------------


def _columns(path: Path, max_bytes: int, first: str) -> Trace:
    requests = _Requests(path)
    at = _named_columns(path, first)
    for number, text in lines(path, max_bytes):
        if at is not None and text == first and not len(requests.prompts):
            continue
        cells = _cells(text)
        prompt, output, time = at or (0, 1, None)
        wanted = max(prompt, output, time or 0) + 1
        if len(cells) < wanted or (at is None and len(cells) > 2):
            refuse(path, number, f"{len(cells)} columns, {_short(text)}; {wanted} are needed")
        requests.add(number, _integer(cells[prompt]), _integer(cells[output]))
        if time is not None:
            requests.add_time(number, _moment(cells[time]), 1.0)
    return requests.trace()


def _named_columns(path: Path, first: str) -> tuple[int, int, int | None] | None:
    """Where prompt, output and time stand; None where the first line holds numbers already."""
    names = [cell.lower() for cell in _cells(first)]
    if all(isinstance(_integer(name), int) for name in names):
        return None
    places = [next((names.index(n) for n in known if n in names), None) for known in (PROMPTS, OUTPUTS)]
    if None in places:
        refuse(
            path, 1, f"columns {_short(first)}; one of {', '.join(PROMPTS)} and one of {', '.join(OUTPUTS)} are needed"
        )
    prompt, output = (place or 0 for place in places)
    return prompt, output, names.index("timestamp") if "timestamp" in names else None


def _cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.split(",")] if "," in text else text.split()


def _integer(cell: str) -> int | str:
    """The number in a cell, or the cell, for the error message."""
    return int(cell) if re.fullmatch(r"-?[0-9]{1,18}", cell) else cell


def _moment(cell: str) -> float | str:
    """Seconds since 1970 of a date and time, or a plain number of seconds; or the cell, for the error message."""
    try:
        return float(cell) if re.fullmatch(r"[0-9.eE+-]+", cell) and cell.count("-") < 2 else _seconds(cell)
    except ValueError:
        return cell


def _seconds(cell: str) -> float:
    when = datetime.fromisoformat(cell)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _lengths_npz(path: Path, max_bytes: int) -> Trace:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > max_bytes:  # the size that the archive states is the most that zipfile will read of it
            raise ValueError(f"its arrays take {size} bytes; at most {max_bytes} are read")
        with np.load(path, allow_pickle=False) as arrays:
            given = {name: arrays[name] for name in ("prompt", "output")}
    except (KeyError, ValueError, EOFError, MemoryError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: no .npz with arrays prompt and output: {error}") from None
    for name, lengths in given.items():
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or lengths.shape != given["prompt"].shape:
            raise ValueError(
                f"{path}: array {name} is {lengths.dtype} {lengths.shape}; integers of one length are needed"
            )
    requests = _Requests(path)
    for i, (prompt, output) in enumerate(zip(given["prompt"].tolist(), given["output"].tolist(), strict=True)):
        requests.add(i + 1, prompt, output)
    return requests.trace()


# -- what all have in common --------------------------------------------------------------------------


class _Requests:
    """Lengths and times as they are read, checked one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.prompts, self.outputs, self.times = array("q"), array("q"), array("d")

    def add(self, line: int, prompt: object, output: object) -> int:
        """Take a request; return its prompt's length."""
        for name, value, least in (("prompt", prompt, 1), ("output", output, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_TOKENS:
                refuse(
                    self.path,
                    line,
                    f"the {name} has {_short(value)} tokens; it must be an integer, {least} to {MAX_TOKENS}",
                )
        assert isinstance(prompt, int) and isinstance(output, int)
        self.prompts.append(prompt)
        self.outputs.append(output)
        return prompt

    def add_time(self, line: int, time: object, unit: float) -> None:
        """Take the time of the request just added, in units of so many seconds."""
        if isinstance(time, bool) or not isinstance(time, int | float) or not abs(time) < 1e15 or math.isnan(time):
            refuse(self.path, line, f"the timestamp is {_short(time)}; it must be a number or, in CSV, a date and time")
        self.times.append(time * unit)

    def trace(self, blocks: tuple[NDArray[np.int32], ...] | None = None, block_size: int | None = None) -> Trace:
        """Return what was read."""
        if not self.prompts:
            raise ValueError(f"{self.path}: there are no requests in it")
        times = np.array(self.times, np.float64) if self.times else None
        return Trace(
            self.path.name,
            np.array(self.prompts, np.int64),
            np.array(self.outputs, np.int64),
            None if times is None else times - times.min(),
            blocks,
            block_size,
        )


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits to print
        return "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}..."
