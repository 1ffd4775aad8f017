"""Blocks from the server into memory, and from memory to the server, many to a trip.

Two batches are under way at a time: while one is checked, the server sends the next. A batch is small enough to stay in
the processor's caches until it is checked, and to keep little waiting in the server's memory.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pagedcache.tiers._checked import checksums
from pagedcache.tiers._places import leading_right
from pagedcache.tiers.frame import Frame
from pagedcache.tiers.protocol import Bytes, Places
from pagedcache.tiers.redis.wire import Buffer, Refused, Wire, command

__all__ = ["STAGED_SECONDS", "batches", "fetch", "stage"]

BATCH_BYTES = 4 << 20
BATCH_BLOCKS = 64
STAGED_SECONDS = 60  # that a store has between its bytes and complete_store

Crcs = NDArray[np.uint32]


def batches(count: int, nbytes: int) -> list[slice]:
    """Divide `count` blocks of `nbytes` each.

    Examples
    --------
    >>> batches(5, 2 << 20)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = max(1, min(BATCH_BLOCKS, BATCH_BYTES // nbytes))
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]


def fetch(
    wire: Wire, keys: Sequence[bytes], offset: int, crcs: Crcs, layers: Sequence[int], places: Places
) -> Iterator[int]:
    """Fetch a stretch of layers of some blocks, and check it; yield how many leading blocks are right so far.

    Ends early at a block that is not right, and leaves the connection out of step then.

    Parameters
    ----------
    wire : Wire
    keys : sequence of bytes
        The blocks' names on the server; at least one.
    offset : int
        Where in a value the stretch begins.
    crcs : uint32 [keys, layers of the model]
        What the records should have.
    layers : sequence of int
        The stretch.
    places : Places
        Where the records go.
    """
    arrays = list(chain.from_iterable(places.layers[layer] for layer in layers))
    nbytes = sum(array.shape[1] for array in arrays)
    last = b"%d" % (offset + nbytes - 1)
    asked = [command(b"GETRANGE", key, b"%d" % offset, last) for key in keys]
    parts = batches(len(keys), nbytes)
    due = asked[parts[0]]
    for part in parts:
        after = asked[part.stop : part.stop + len(asked[part])]
        wire.send([*due, *after], len(due) + len(after))
        due = []
        wire.expect(nbytes * (part.stop - part.start))
        arrived = part.start
        for row in places.rows[part].tolist():
            if not wire.bulk_into([array[row] for array in arrays], nbytes):
                break
            arrived += 1
        right = part.start + leading_right(places[part.start : arrived], layers, crcs[part.start : arrived])
        yield right
        if right < part.stop:
            return


def stage(wire: Wire, names: Sequence[bytes], digests: Sequence[bytes], frame: Frame, places: Places) -> list[bool]:
    """Put blocks on the server under names that last a minute; which of them it took."""
    arrays: list[Bytes] = list(chain.from_iterable(places.layers))
    nbytes = frame.nbytes + sum(array.shape[1] for array in arrays)
    end = b"\r\n$2\r\nEX\r\n$%d\r\n%d\r\n" % (len(str(STAGED_SECONDS)), STAGED_SECONDS)
    taken: list[bool] = []
    due = 0
    for part in batches(len(names), nbytes):
        rows = places.rows[part]
        crcs = np.stack([checksums(layer, rows) for layer in places.layers], axis=1)  # while the last batch is taken
        send: list[Buffer] = []
        for row, name, digest, sums in zip(rows.tolist(), names[part], digests[part], crcs, strict=True):
            head = len(name), name, nbytes, frame.header(digest, sums)
            send += [b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b" % head, *(array[row] for array in arrays), end]
        taken += [not isinstance(reply, Refused) for reply in wire.replies(due)]
        wire.send(send, due := len(rows))
    return taken + [not isinstance(reply, Refused) for reply in wire.replies(due)]
