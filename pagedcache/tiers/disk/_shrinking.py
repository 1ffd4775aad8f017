"""A size limit below what is there: the least recently used blocks go, the others move to the front of the slab."""

from collections.abc import Iterator, Sequence

import numpy as np

from pagedcache.errors import TierError
from pagedcache.tiers.disk._writer import Writer
from pagedcache.tiers.protocol import Places

__all__ = ["shrink"]

GROUP = 64  # blocks that are moved between two syncs


def shrink(writer: Writer, *, sync: bool) -> None:
    """Bring the slab down to ``writer.most`` slots.

    Raises
    ------
    TierError
        Pinned blocks need more; nothing was changed.
    """
    catalog, most = writer.catalog, writer.most
    if catalog.pinned > most:
        raise TierError(
            f"pins hold {catalog.pinned} blocks in {writer.slab.path.parent}, and its new size has room for {most}: "
            "unpin some, or give a larger size"
        )
    victims = catalog.victims(len(catalog.slots) - most)
    writer.forget(victims)
    writer.evicted += len(victims)
    high = [digest for digest, slot in catalog.slots.items() if slot >= most]
    low = iter(np.flatnonzero(catalog.free_below(most)).tolist())
    for group in _groups(high):
        _move(writer, group, low, sync=sync)
    catalog.resize(most)
    writer.slab.resize(most)
    writer.index.compact()


def _groups(digests: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for begin in range(0, len(digests), GROUP):
        yield digests[begin : begin + GROUP]


def _move(writer: Writer, digests: Sequence[bytes], low: Iterator[int], *, sync: bool) -> None:
    """Copy blocks to free slots, verified, and then let the index know; what is not right is lost."""
    slab, moved = writer.slab, []
    form = slab.form
    records = np.empty((1, form.layers, form.record_nbytes), np.uint8)
    places = Places.of_records(records)
    for digest in digests:
        old = np.array([writer.catalog.slots[digest]])
        right, crcs = slab.heads(old, [digest])
        if not right or not slab.read(range(form.layers), old, crcs, places):
            writer.lose(digest)
            continue
        new = next(low)
        slab.write(np.array([new]), [digest], places)
        moved.append((digest, new))
    if sync:
        slab.sync()
    writer.moved(moved)
