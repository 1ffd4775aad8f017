"""What the verbs return: plain data, no behaviour."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class AdmitStatus(IntEnum):
    """Outcome of admission, one per prompt."""

    ADMITTED = 0  #: blocks are allotted, the handle is live
    NOT_NOW = 1  #: too few usable blocks or rows at present; try again after a release
    NEVER_FITS = 2  #: longer than max_length or than the whole pool


class Admission(NamedTuple):
    """Result of ``admit``.

    Attributes
    ----------
    ids : int64 [n]
        Handles; -1 where the prompt was not admitted.
    cached : int32 [n]
        Leading tokens of each prompt whose K/V is there already.
    status : int8 [n]
        `AdmitStatus` values.
    """

    ids: NDArray[np.int64]
    cached: NDArray[np.int32]
    status: NDArray[np.int8]


class StateBlocks(NamedTuple):
    """Where a state group's states of a step's sequences are: views, valid as long as those of the step.

    Attributes
    ----------
    state_in : int32 [n, blocks]
        Blocks that hold the state of each sequence before the step, only read; 0, the zero block, where it has none.
    state_out : int32 [n, blocks]
        Blocks that the state after the step is written to; -1 for a sequence without new tokens.
    """

    state_in: NDArray[np.int32]
    state_out: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A snapshot of the counters; taking it costs O(blocks), keeping them costs next to nothing."""

    num_blocks: int  #: usable blocks of the pool
    free: int  #: blocks usable now, idle cached ones included
    cached: int  #: idle blocks that a prefix match can find
    used: int  #: blocks held by sequences, pins or unfinished work; a shared block counts once
    waiting: int  #: of these, blocks that only unfinished work holds, until its fence retires
    pinned: int  #: blocks held by pins; a block counts once for each
    shared: int  #: blocks held more than once; an open step's hold on the source of a copy counts
    peak_used: int  #: most blocks ever held at once
    published: int  #: blocks that a prefix match can find, held or idle
    sequences: int  #: live sequences
    tokens: int  #: positions of all live sequences, committed, pads not counted; shared ones count for each
    group_blocks: tuple[int, ...]  #: table entries that name a block, by layer group; shared blocks count for each
    query_tokens: int  #: prompt tokens of all admitted prompts so far
    hit_tokens: int  #: of these, tokens found in the prefix cache
    copies: int  #: blocks copied because a shared or published block was to be written
    adopted: int  #: blocks given up at commit for an equal published one
    swapped: int  #: blocks of live sequences that are in another tier
    evictions: int  #: cached blocks given up for new content
    bookkeeping_bytes: int  #: bytes of tables, records and index, without stored token ids
