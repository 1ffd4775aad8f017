"""Work on a whole folder: check every block, copy what is right."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pagedcache.tiers.disk.tier import DiskTier
from pagedcache.tiers.protocol import Places

__all__ = ["check", "copy"]

GROUP_NBYTES = 32 << 20  # of blocks that are in memory at a time

Bytes = NDArray[np.uint8]
Progress = Callable[[int, int], None]


def check(tier: DiskTier, progress: Progress | None = None) -> tuple[int, list[bytes]]:
    """Read and verify every block; how many are right, and which are not.

    A tier that writes forgets those. Blocks that a writer drops meanwhile are in neither number.

    Parameters
    ----------
    tier : DiskTier
        Bound.
    progress : callable, optional
        Called with blocks done and blocks in all.
    """
    keys = tier.digests()
    right, wrong = 0, list[bytes]()
    for done, good, bad in _verified(tier, keys):
        right += len(good)
        wrong += bad
        if progress:
            progress(done, len(keys))
    return right, wrong


def copy(source: DiskTier, target: DiskTier, progress: Progress | None = None) -> int:
    """Copy the blocks that are right, their order of use and their pins; how many.

    Parameters
    ----------
    source, target : DiskTier
        Bound to the same format; the target writes.
    progress : callable, optional
        Called with blocks done and blocks in all.
    """
    keys = source.digests()[::-1]
    copied = 0
    for done, good, _ in _verified(source, keys):
        store = target.prepare_store([key for key, _ in good][::-1])  # the last of them counts as used last
        records = dict(good)
        wanted = [records[store.keys[number]] for number in store.wanted]
        if wanted:
            target.store(store, Places.of_records(np.stack(wanted)))
        copied += target.complete_store(store)
        if progress:
            progress(done, len(keys))
    for name, pinned in source.pins().items():
        target.pin(pinned, name)
    return copied


def _verified(tier: DiskTier, keys: Sequence[bytes]) -> Iterator[tuple[int, list[tuple[bytes, Bytes]], list[bytes]]]:
    """Of group after group: keys done, blocks that are right, with their records until the next, and corrupt ones."""
    form = tier.form
    assert form is not None
    group = max(1, GROUP_NBYTES // form.block_nbytes)
    records = np.empty((group, form.layers, form.record_nbytes), np.uint8)
    begin = 0
    while begin < len(keys):
        asked = keys[begin : begin + group]
        before = tier.stats().corrupt
        load = tier.prepare_load(asked)
        try:
            right = tier.load(load, range(form.layers), Places.of_records(records[: load.count]))
        finally:
            tier.complete_load(load)
        bad = [asked[right]] if tier.stats().corrupt > before else []
        begin += right if right == len(asked) else right + 1
        yield begin, [(asked[n], records[n]) for n in range(right)], bad
