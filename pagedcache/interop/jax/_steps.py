"""The arrays of a step in sizes that repeat, so that what was compiled for one step serves for others."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagedcache.core import Step

__all__ = ["NOWHERE", "StepArrays", "step_arrays"]

NOWHERE = np.iinfo(np.int32).max  # a slot or block that no pool has: mode="drop" leaves such writes out
Int32 = NDArray[np.int32]


class StepArrays(NamedTuple):
    """What a step is, as int32 arrays; JAX passes it through jit as it is.

    Attributes
    ----------
    slots : [tokens]
        Where K and V of the new tokens go; beyond the pool in rows that only fill up.
    positions, token_seq : [tokens]
        Position of each token, and its sequence.
    qo_indptr : [sequences + 1]
    block_tables : [sequences, width]
        0 where there is no block.
    kv_lens, kv_pads, kv_starts : [sequences]
        As `Step` has them.
    copies : [copies, 2]
        Blocks to copy before anything is written: from, to; see `copy_blocks`.
    last : [sequences]
        The row of each sequence's last token, whose logits say what comes next; 0 in rows that only fill up.
    """

    slots: Int32
    positions: Int32
    token_seq: Int32
    qo_indptr: Int32
    block_tables: Int32
    kv_lens: Int32
    kv_pads: Int32
    kv_starts: Int32
    copies: Int32
    last: Int32


def step_arrays(
    step: Step, *, tokens: int | None = None, sequences: int | None = None, width: int | None = None, group: int = 0
) -> StepArrays:
    """Return a step's arrays, filled up to sizes that repeat from step to step.

    Parameters
    ----------
    step : Step
    tokens, sequences, width : int, optional
        How many of each, and how many blocks of a sequence; by default the next power of two. A program that gives
        all three compiles its step once.
    group : int
        The layer group.

    Raises
    ------
    ValueError
        The step has more than that, or a slot that int32 does not hold.

    Examples
    --------
    >>> from pagedcache import CacheSpec, KVCache
    >>> spec = CacheSpec(layers=1, kv_heads=1, head_dim=8, block_size=4)
    >>> cache = KVCache(spec, num_blocks=8, storage="metadata")
    >>> arrays = step_arrays(cache.extend(cache.admit([range(5), range(9, 11)]).ids, [5, 2]))
    >>> arrays.slots.shape, arrays.qo_indptr.tolist(), arrays.last.tolist()
    ((8,), [0, 5, 7], [4, 6])
    """
    own = step.groups[group] if group else step
    live = step.num_sequences
    reach = max(-(-int(step.kv_lens.max(initial=0)) // step.block_size), 1)  # blocks that the longest one has
    rows = _size("tokens", step.num_tokens, tokens)
    places = _size("sequences", live, sequences)
    blocks = _size("width", min(reach, own.block_tables.shape[1]), width)
    if own.slots.size and own.slots.max() >= NOWHERE:
        raise ValueError(f"slot {own.slots.max()} does not fit in int32, which JAX has by default")
    tables = np.zeros((places, blocks), np.int32)
    np.maximum(own.block_tables[:, :blocks], 0, out=tables[:live, : own.block_tables.shape[1]])
    copies = np.full((_power(len(own.copies)) if len(own.copies) else 0, 2), (0, NOWHERE), np.int32)
    copies[: len(own.copies)] = own.copies
    return StepArrays(
        slots=_filled(own.slots, rows, NOWHERE),
        positions=_filled(step.positions, rows, 0),
        token_seq=_filled(step.token_seq, rows, 0),
        qo_indptr=_filled(step.qo_indptr, places + 1, step.num_tokens),
        block_tables=tables,
        kv_lens=_filled(step.kv_lens, places, 0),
        kv_pads=_filled(step.kv_pads, places, 0),
        kv_starts=_filled(own.kv_starts, places, 0),
        copies=copies,
        last=_filled(step.qo_indptr[1:] - 1, places, 0),
    )


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _size(name: str, least: int, asked: int | None) -> int:
    if asked is None:
        return _power(least)
    if asked < least:
        raise ValueError(f"{name} is {asked}, and the step has {least}: give more, or None for the next power of two")
    return asked


def _filled(values: NDArray[np.integer], size: int, rest: int) -> Int32:
    array = np.full(size, rest, np.int32)
    array[: len(values)] = values
    return array
