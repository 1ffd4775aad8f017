"""Blocks from the server into memory, and from memory to the server, many to a trip.

Two batches are under way at a time: while one is checked, the server sends the next. A batch is small enough to stay in
the processor's caches until it is checked, and to keep little waiting in the server's memory.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pagedcache.tiers._checked import checksums
from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.protocol import Bytes, Places
from pagedcache.tiers.redis.frame import Frame
from pagedcache.tiers.redis.wire import Buffer, Refused, Wire, command

__all__ = ["STAGED_SECONDS", "batches", "fetch", "require_places", "stage"]

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
        The blocks' names on the server.
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
    for part, after in zip(parts, [*parts[1:], slice(0)], strict=True):
        wire.send(
            asked[part] * (part.start == 0) + asked[after], len(asked[after]) + len(asked[part]) * (part.start == 0)
        )
        wire.expect(nbytes * (part.stop - part.start))
        arrived = part.start
        rows = places.rows[part].tolist()
        while arrived < part.stop and wire.bulk_into([array[rows[arrived - part.start]] for array in arrays], nbytes):
            arrived += 1
        right = part.start + _right(places[part.start : arrived], layers, crcs[part.start : arrived])
        yield right
        if right < part.stop:
            return


def _right(places: Places, layers: Sequence[int], crcs: Crcs) -> int:
    """How many leading blocks have these checksums."""
    good = np.ones(len(crcs), np.bool_)
    for layer in layers:
        good &= checksums(places.layers[layer], places.rows) == crcs[:, layer]
    return len(good) if good.all() else int(good.argmin())


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


def require_places(form: BlockFormat, places: Places, layers: range, count: int, way: Literal["into", "from"]) -> None:
    """Raise ValueError unless there is a place for each record: once bytes are under way it is too late."""
    if layers and not (layers.step == 1 and 0 <= layers.start < layers.stop <= form.layers <= len(places.layers)):
        raise ValueError(f"{layers} of the {len(places.layers)} layers of places; a block has {form.layers}")
    rows = places.rows[:count]
    if len(rows) < count:
        raise ValueError(f"{len(rows)} rows for {count} blocks")
    if not count:
        return  # NumPy's empty arrays have strides of any kind
    for arrays in (places.layers[layer] for layer in layers):
        widths = [array.shape[1] for array in arrays]
        if sum(widths) != form.record_nbytes:
            raise ValueError(f"pieces of {widths} bytes, together {sum(widths)}; a record has {form.record_nbytes}")
        for array in arrays:
            if not 0 <= rows.min() <= rows.max() < len(array):
                raise ValueError(f"rows {rows.min()} to {rows.max()}; an array has {len(array)}")
            if array.dtype != np.uint8 or (array.shape[1] > 1 and array.strides[1] != 1):
                raise ValueError(f"an array of {array.dtype} with strides {array.strides}; rows must be compact bytes")
            if way == "into" and not array.flags.writeable:
                raise ValueError("an array to read into is read-only")
