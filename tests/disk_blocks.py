"""Blocks for tests of the disk tier: what one holds follows from its number, so that a wrong byte is seen."""

import hashlib

import numpy as np

from pagedcache import CacheSpec
from pagedcache.tiers import BlockFormat, DiskTier, Places

FORM = BlockFormat.of(CacheSpec(layers=3, kv_heads=1, head_dim=8, block_size=4, fingerprint=b"tiny"))
SLOT = 8192  # bytes of a slot of FORM


def key(number):
    """The digest of a block."""
    return hashlib.sha256(b"block %d" % number).digest()


def records_of(numbers, form=FORM):
    """What blocks hold, uint8 [blocks, layers, record]."""
    words = -(-form.block_nbytes // 8)
    made = np.empty((len(numbers), words), np.uint64)
    for row, number in zip(made, numbers, strict=True):
        row[:] = np.random.Philox(number).random_raw(words)
    flat = made.view(np.uint8)[:, : form.block_nbytes]
    return np.ascontiguousarray(flat).reshape(len(made), form.layers, form.record_nbytes)


def opened(path, size="4 MiB", form=FORM, **how):
    """A tier that is bound."""
    tier = DiskTier(path, size, **how)
    try:
        tier.bind(form)
    except BaseException:
        tier.close()
        raise
    return tier


def put(tier, numbers):
    """Store blocks; how many became visible."""
    store = tier.prepare_store([key(number) for number in numbers])
    wanted = [numbers[i] for i in store.wanted]
    try:
        if wanted:
            tier.store(store, Places.of_records(records_of(wanted, tier.form)))
        return tier.complete_store(store)
    except BaseException:
        tier.abort_store(store)
        raise


def get(tier, numbers):
    """Load blocks layer by layer; how many leading ones were given. Every byte of them is compared."""
    load = tier.prepare_load([key(number) for number in numbers])
    try:
        form = tier.form
        found = np.zeros((len(numbers), form.layers, form.record_nbytes), np.uint8)
        right = load.count
        for layer in range(form.layers):
            right = tier.load(load, range(layer, layer + 1), Places.of_records(found[: load.count]))
        assert (found[:right] == records_of(numbers[:right], form)).all(), "a wrong byte was served"
        return right
    finally:
        tier.complete_load(load)


def there(tier, numbers):
    """Which of the blocks are given, one by one."""
    return [number for number in numbers if get(tier, [number])]
