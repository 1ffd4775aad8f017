"""The sequences of a step, checked: one Sight each, and the prefixes that some of them share."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends._step_like import StepLike
from pagedcache.backends.host.arguments import indices
from pagedcache.backends.host.rule import Rule
from pagedcache.backends.host.sight import Sight
from pagedcache.exchange import as_numpy

__all__ = ["sequences", "shared_prefixes", "trees"]

Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
FARTHEST = 2**61  # position: differences do not overflow


def sequences(
    step: StepLike, group: int, block_size: int, num_blocks: int, tokens: int, rule: Rule, masks: list[Bools | None]
) -> list[Sight]:
    """Return what the queries of each sequence of a step see; all its blocks exist in the pool.

    Raises
    ------
    ValueError
        Arrays of the step contradict each other, the storage or the number of query tokens.
    """
    if step.block_size != block_size:
        raise ValueError(f"the step has block_size {step.block_size}; the storage has {block_size}")
    own = step.groups[group] if group else step
    tables, positions = _within_int32("block_tables", own.block_tables, 2), indices("positions", step.positions)
    indptr, kv_lens, pads = (_within_int32(name, getattr(step, name)) for name in ("qo_indptr", "kv_lens", "kv_pads"))
    starts = _within_int32("kv_starts", own.kv_starts)
    n = len(kv_lens)
    if (len(tables), len(starts), len(pads), len(indptr)) != (n, n, n, n + 1):
        raise ValueError(
            f"the step's arrays do not agree on the number of sequences: block_tables {tables.shape}, "
            f"kv_lens {kv_lens.shape}, kv_starts {starts.shape}, kv_pads {pads.shape}, qo_indptr {indptr.shape}"
        )
    starts = np.maximum(starts, pads)
    if (far := positions[(positions < -FARTHEST) | (positions > FARTHEST)]).size:
        raise ValueError(f"positions holds {far[0]}; it must be at most 2**61 and not less than -2**61")
    if indptr[0] != 0 or indptr[-1] != tokens or (indptr[1:] < indptr[:-1]).any() or positions.shape != (tokens,):
        raise ValueError(
            f"qo_indptr must rise from 0 to {tokens}, the number of queries, and positions have as many entries; "
            f"they are {indptr} and of shape {positions.shape}"
        )
    capacity = tables.shape[1] * block_size if n else 0
    if n and (kv_lens.min() < 0 or kv_lens.max() > capacity or pads.min() < 0):
        raise ValueError(
            f"kv_lens must be 0 to {capacity} (table width {tables.shape[1]} x block_size {block_size}) and "
            f"kv_starts and kv_pads not negative; kv_lens is {kv_lens}, kv_pads {pads}"
        )
    found = []
    for row, table in enumerate(tables):
        begin, end, length, pad = int(indptr[row]), int(indptr[row + 1]), int(kv_lens[row]), int(pads[row])
        new = length - (end - begin)
        mine = positions[begin:end]
        places = np.arange(new, length)
        start = int(starts[row])
        found.append(
            Sight(table, pad, start, new, 0, length, places, mine, mine, masks[row], rule.window, rule.sink_tokens)
        )
    _check_blocks(found, block_size, num_blocks)
    return found


def _within_int32(name: str, values: Any, ndim: int = 1) -> Int64:
    array = indices(name, values, ndim)
    if (beyond := array[(array < -(2**31)) | (array >= 2**31)]).size:
        raise ValueError(f"{name} holds {beyond[0]}; it must fit into int32")
    return array


def _check_blocks(sights: list[Sight], block_size: int, num_blocks: int) -> None:
    for row, sight in enumerate(sights):
        for first, last in sight.spans:
            logical = slice(first // block_size, (last - 1) // block_size + 1)
            blocks = sight.table[logical]
            if blocks.min() < 1 or blocks.max() > num_blocks:
                entry = logical.start + int(np.argmax((blocks < 1) | (blocks > num_blocks)))
                raise ValueError(
                    f"block_tables[{row}, {entry}] is {sight.table[entry]}, in the visible part of the sequence; "
                    f"the pool has blocks 1 to {num_blocks}"
                )


def trees(mask: Any, mask_indptr: Any, qo_indptr: Any) -> list[Bools | None]:
    """Return the mask of each sequence, bool [q_len, q_len], or None where it is causal."""
    begins = _within_int32("qo_indptr", qo_indptr)
    if (begins[1:] < begins[:-1]).any():
        raise ValueError(f"qo_indptr must rise; it is {begins}")
    counts = np.diff(begins).tolist()
    if mask is None and mask_indptr is None:
        return [None] * len(counts)
    if mask is None or mask_indptr is None:
        raise ValueError("give both mask and mask_indptr, or neither")
    packed = as_numpy(mask, "mask")
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise TypeError(f"mask is {packed.dtype} {packed.shape}; it must be uint8 with one axis, of packed bits")
    indptr = indices("mask_indptr", mask_indptr)
    sizes = np.diff(indptr)
    wanted = np.array([-(-count * count // 8) for count in counts], np.int64)
    if len(indptr) != len(counts) + 1 or indptr[0] != 0 or indptr[-1] != packed.size:
        raise ValueError(
            f"mask_indptr must be {len(counts) + 1} offsets from 0 to {packed.size}, the bytes of mask; it is {indptr}"
        )
    if (wrong := (sizes != 0) & (sizes != wanted)).any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"mask_indptr gives sequence {row} {sizes[row]} bytes; its {counts[row]} new tokens need {wanted[row]}, "
            "or none for a causal mask"
        )
    found: list[Bools | None] = []
    for count, begin, end in zip(counts, indptr[:-1].tolist(), indptr[1:].tolist(), strict=True):
        bits = np.unpackbits(packed[begin:end], count=count * count, bitorder="little") if begin < end else None
        found.append(None if bits is None else bits.reshape(count, count).astype(np.bool_))
    return found


def shared_prefixes(step: StepLike, sights: list[Sight], block_size: int) -> list[tuple[range, int]]:
    """Return which neighbours share how many leading keys, for which it is worth to attend to these together.

    Left out are neighbours whose tables, pads or first held positions differ there, and prefixes that
    reach into the new tokens of one of them: the result is the same without sharing.

    Raises
    ------
    ValueError
        The plan names sequences that are not there, or one of them twice.
    """
    plan = step.shared_prefixes
    if plan is None:
        return []
    array = indices("shared_prefixes", plan if len(plan) else np.empty((0, 3), np.int64), ndim=2)
    if array.shape[1] != 3 or array.min(initial=0) < 0:
        raise ValueError(
            f"shared_prefixes is {array.tolist()}; it must be [g, 3] of first sequence, sequences and blocks"
        )
    groups, free = [], 0
    for first, count, blocks in sorted(array.tolist()):
        members = range(first, first + count)
        if first < free or members.stop > len(sights):
            raise ValueError(
                f"shared_prefixes names sequences {first} to {members.stop - 1}; the step has {len(sights)}, "
                f"and those before {free} are named already"
            )
        free = members.stop
        chosen = [sights[i] for i in members]
        if count > 1 and blocks and all(_shares(chosen[0], other, blocks, block_size) for other in chosen):
            groups.append((members, blocks * block_size))
    return groups


def _shares(one: Sight, other: Sight, blocks: int, block_size: int) -> bool:
    return (
        (one.pad, one.start) == (other.pad, other.start)
        and blocks * block_size <= other.new
        and np.array_equal(one.table[:blocks], other.table[:blocks])
    )
