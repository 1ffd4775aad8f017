"""What each block of a snapshot is."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from pagedcache.inspection.snapshot import Snapshot

__all__ = ["BlockKind", "block_kinds", "block_letters"]

WIDTH = 64  # blocks of a row in letters


class BlockKind(IntEnum):
    """What a block is."""

    FREE = 0
    CACHED = 1
    HELD = 2
    SHARED = 3


def block_kinds(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return a `BlockKind` for each block, int64 [num_blocks]."""
    holders = np.array(snapshot.holders, np.int64)
    kinds = np.where(holders > 1, BlockKind.SHARED, np.where(holders > 0, BlockKind.HELD, BlockKind.FREE))
    published = np.array(snapshot.published, np.int64) - 1
    kinds[published[holders[published] == 0]] = BlockKind.CACHED
    return kinds


def block_letters(snapshot: Snapshot, most: int | None = None) -> list[str]:
    """Return rows of 64 letters, a letter a block: ``.`` free, ``c`` cached, 1 to 9 holders, ``+`` for more of them.

    Examples
    --------
    >>> block_letters(Snapshot(16, 6, [1, 0, 12, 2, 0, 0], [1, 2], []))
    ['1c+2..']
    """
    names = np.array([".", *"123456789", "+"])
    letters = names[np.minimum(snapshot.holders, 10)]
    letters[block_kinds(snapshot) == BlockKind.CACHED] = "c"
    text = "".join(letters[:most])
    return [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]
