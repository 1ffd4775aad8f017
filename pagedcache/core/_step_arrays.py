"""Checks and defaults for `Step.from_arrays`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache.core._convert import int32_array, int64_array


def checked_step_arrays(
    block_tables: Any,
    kv_lens: Any,
    qo_indptr: Any,
    block_size: int,
    positions: Any,
    slots: Any,
    kv_starts: Any,
    kv_pads: Any,
    shared_prefixes: Any,
) -> dict[str, NDArray[Any]]:
    """The arrays of a step by name, all present, of the right dtype, and consistent."""
    if isinstance(block_size, bool) or not isinstance(block_size, (int, np.integer)) or not 1 <= block_size <= 1024:
        raise ValueError(f"block_size is {block_size!r}; it must be an int from 1 to 1024")
    lens = int32_array(kv_lens, "kv_lens")
    indptr = int32_array(qo_indptr, "qo_indptr")
    n = len(lens)
    tables = _tables(block_tables, n)
    if n and (int(lens.min()) < 0 or int(lens.max()) > tables.shape[1] * block_size):
        raise ValueError(
            f"kv_lens must be 0..{tables.shape[1] * block_size} (width {tables.shape[1]} x block_size {block_size}); "
            f"they run from {lens.min()} to {lens.max()}"
        )
    if len(indptr) != n + 1 or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise ValueError(f"qo_indptr must be n + 1 = {n + 1} offsets that start at 0 and never fall, not {indptr}")
    pads = _per_sequence(kv_pads, np.zeros(n, np.int32), lens, "kv_pads")
    starts = _per_sequence(kv_starts, pads, lens, "kv_starts")

    counts = np.diff(indptr)
    tokens = int(indptr[-1])
    token_seq = np.repeat(np.arange(n, dtype=np.int32), counts)
    coordinates = np.arange(tokens, dtype=np.int64) - indptr[1:][token_seq] + lens[token_seq]
    if positions is None:
        positions = coordinates - pads[token_seq]
    if slots is None:
        blocks = tables[token_seq, np.maximum(coordinates, 0) // block_size].astype(np.int64) if tokens else coordinates
        slots = np.where(coordinates >= 0, blocks * block_size + coordinates % block_size, -1)
    live = np.arange(tables.shape[1]) < -(-lens[:, None] // np.int32(block_size))
    if (tables[live] < 0).any():
        raise ValueError(f"block_tables holds {tables[live].min()} within the blocks that kv_lens covers")
    arrays: dict[str, NDArray[Any]] = {
        "block_tables": tables,
        "kv_lens": lens,
        "qo_indptr": indptr,
        "kv_pads": pads,
        "kv_starts": starts,
        "token_seq": token_seq,
        "positions": int64_array(positions, "positions"),
        "slots": int64_array(slots, "slots"),
    }
    for name in ("positions", "slots"):
        if len(arrays[name]) != tokens:
            raise ValueError(f"{name} has {len(arrays[name])} entries for {tokens} tokens")
    if tokens and arrays["slots"].min() < -1:
        raise ValueError(f"slots holds {arrays['slots'].min()}; a slot is 0 or more, or -1 for none")
    if shared_prefixes is not None:
        arrays["shared_prefixes"] = _shared_prefixes(shared_prefixes, tables, (lens - counts) // np.int32(block_size))
    return arrays


def _shared_prefixes(values: Any, tables: NDArray[np.int32], whole: NDArray[np.int32]) -> NDArray[np.int32]:
    """Checked: `whole` are the blocks of each sequence that lie before its new tokens."""
    shape = np.shape(values)
    if np.size(values) == 0:
        return np.empty((0, 3), np.int32)
    if len(shape) != 2 or shape[1] != 3:
        raise ValueError(f"shared_prefixes must be [g, 3], not of shape {shape}")
    groups = int32_array(np.reshape(values, -1), "shared_prefixes").reshape(shape)
    end = 0
    for first, count, blocks in groups.tolist():
        if first < end or count < 2 or first + count > len(whole):
            raise ValueError(
                f"shared_prefixes names sequences {first} to {first + count} of {len(whole)}, out of order"
            )
        end = first + count
        if not 1 <= blocks <= int(whole[first:end].min()):
            raise ValueError(f"{blocks} shared blocks reach into the new tokens of sequences {first} to {end}")
        if (tables[first:end, :blocks] != tables[first, :blocks]).any():
            raise ValueError(f"sequences {first} to {end} do not share their first {blocks} blocks")
    return groups


def _tables(values: Any, n: int) -> NDArray[np.int32]:
    tables = np.asarray(values)
    if tables.size == 0 and tables.ndim <= 2:
        return np.full((n, 1), -1, np.int32)
    if tables.ndim != 2 or len(tables) != n:
        raise ValueError(f"block_tables must be [n, width] with n = {n} rows, not of shape {tables.shape}")
    return int32_array(tables.reshape(-1), "block_tables").reshape(tables.shape)


def _per_sequence(values: Any, default: NDArray[np.int32], lens: NDArray[np.int32], name: str) -> NDArray[np.int32]:
    if values is None:
        return default
    array = int32_array(values, name)
    if len(array) != len(lens):
        raise ValueError(f"{name} has {len(array)} entries for {len(lens)} sequences")
    if len(array) and int(array.min()) < 0:
        raise ValueError(f"{name} holds {array.min()}; positions are 0 or more")
    return array
