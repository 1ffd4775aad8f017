"""Bars of tiers: swaps, the disk tier beside plain reads and writes, a restart, and how soon a kept prompt goes on.

    python benchmarks/tiers.py [--quick] [--folder DIR]

Ratios are of medians from interleaved rounds in this one run. Reads are from the page cache.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from suites.measuring import Clock, Row

from pagedcache import CacheSpec, KVCache
from pagedcache.tiers import BlockFormat, DiskTier, Places, store_blocks

SPEC = CacheSpec(layers=32, kv_heads=8, head_dim=128, dtype="float16", block_size=16, fingerprint=b"2 MiB a block")
BLOCK = SPEC.bytes_per_block  # as of Llama 3 8B
GROUP = 100  # blocks to a sync


def keys_of(first, stop):
    """Names of blocks that no other call gives."""
    return [number.to_bytes(32, "little") for number in range(first, stop)]


def copied(source, target):
    """Copy as memcpy does: long stretches, one thread."""
    np.copyto(target, source)


def swaps(rounds, blocks):
    """A sequence out of the pool and back, beside a copy of as many bytes in one stretch, by one thread."""
    clock = Clock()
    with KVCache(SPEC, num_blocks=blocks) as cache:
        ids = cache.admit([[]], reserve=blocks * SPEC.block_size).ids
        step = cache.extend(ids, blocks * SPEC.block_size)
        for array in cache.storage.export(writable=True):
            for kind in array:
                kind[...] = 1
        cache.commit(step, None)
        del array, kind
        source, target = np.ones((2, blocks * BLOCK), np.uint8)
        for _ in range(rounds):
            clock.time("memcpy", lambda: copied(source, target))
            clock.time("out", lambda: cache.swap_out(ids))
            clock.time("in", lambda: cache.swap_in(ids))
    for way in ("out", "in"):
        yield Row(f"swap {way}, {blocks} blocks of 2 MiB", blocks * BLOCK / clock.median(way) / 1e9, "GB/s")
        yield Row("  of memcpy", clock.median("memcpy") / clock.median(way), "x", 0.7, at_least=True)


def plain_write(path, data, blocks):
    """Write blocks one after the other, with a sync for each group."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for number in range(blocks):
        os.pwrite(fd, data[number], number * BLOCK)
        if number % GROUP == GROUP - 1:
            os.fdatasync(fd)
    os.close(fd)


def tier_write(folder, records, blocks):
    """The same through a new tier."""
    tier = DiskTier(folder, 2 * blocks * BLOCK)
    tier.bind(BlockFormat.of(SPEC))
    for first in range(0, blocks, GROUP):
        places = Places.of_records(records[first : first + GROUP])
        store_blocks(tier, keys_of(first, first + GROUP), places)
    tier.close()


def plain_read(path, into, blocks):
    fd = os.open(path, os.O_RDONLY)
    for number in range(blocks):
        os.preadv(fd, [into[number]], number * BLOCK)
    os.close(fd)


def tier_read(tier, keys, places):
    load = tier.prepare_load(keys)
    assert tier.load(load, range(SPEC.layers), places) == len(keys)
    tier.complete_load(load)


def disk(rounds, blocks, folder):
    """Stores with a sync for every group, and verified loads, beside a plain file."""
    clock = Clock()
    records = np.random.default_rng(0).integers(0, 256, (blocks, SPEC.layers, SPEC.record_nbytes(0)), np.uint8)
    flat = records.reshape(blocks, -1)
    for _ in range(rounds):
        shutil.rmtree(folder / "tier", ignore_errors=True)
        (folder / "plain").unlink(missing_ok=True)
        clock.time("write", lambda: plain_write(folder / "plain", flat, blocks))
        clock.time("store", lambda: tier_write(folder / "tier", records, blocks))
    yield Row(f"disk store, {blocks} blocks of 2 MiB", blocks * BLOCK / clock.median("store") / 1e9, "GB/s")
    yield Row("  of a sequential writer", clock.median("write") / clock.median("store"), "x", 0.6, at_least=True)
    tier = DiskTier(folder / "tier", 2 * blocks * BLOCK)
    tier.bind(BlockFormat.of(SPEC))
    into = np.zeros_like(records)
    keys, places = keys_of(0, blocks), Places.of_records(into)
    for _ in range(2 * rounds):
        clock.time("read", lambda: plain_read(folder / "plain", into.reshape(blocks, -1), blocks))
        clock.time("load", lambda: tier_read(tier, keys, places))
    assert (into == records).all()
    tier.close()
    yield Row(f"verified disk load, {blocks} blocks of 2 MiB", blocks * BLOCK / clock.median("load") / 1e9, "GB/s")
    yield Row("  of preadv", clock.median("read") / clock.median("load"), "x", 0.8, at_least=True)


def restart(rounds, blocks, folder):
    """Opening a folder with many small blocks."""
    clock = Clock()
    spec = CacheSpec(layers=1, kv_heads=1, head_dim=8, block_size=4, fingerprint=b"small blocks")
    form = BlockFormat.of(spec)
    tier = DiskTier(folder / "many", "4 GiB", sync=False)
    tier.bind(form)
    for first in range(0, blocks, 1000):
        keys = keys_of(first, min(blocks, first + 1000))
        store_blocks(tier, keys, Places.of_records(np.zeros((len(keys), 1, form.record_nbytes), np.uint8)))
    tier.close()

    def opened():
        tier = DiskTier(folder / "many", "4 GiB")
        tier.bind(form)
        assert tier.longest_prefix(keys_of(0, 4)) == min(4, blocks)
        return tier

    for _ in range(rounds):
        clock.time("open", opened).close()
    yield Row(f"restart with {blocks} blocks", clock.median("open"), "s", 0.5)


def kept_prompt(rounds, length, folder):
    """SmolLM2 goes on after a long prompt: computed, loaded and then computed, loaded while it is computed."""
    from pagedcache.serving.models import find_model, load_model, model_fingerprint

    path = find_model()
    model, _ = load_model(path)
    spec = model.cache_spec()
    spec = CacheSpec(spec.layers, spec.kv_heads, spec.head_dim, fingerprint=model_fingerprint(path))
    prompt = np.random.default_rng(0).integers(1000, 40_000, length + spec.block_size, dtype=np.int32)
    clock, tier = Clock(), DiskTier(folder / "kept", "4 GiB")

    with KVCache(spec, num_blocks=length // 16 + 8, steps_in_flight=2, tiers=[tier]) as cache:

        def computed(ids, tokens):
            for first in range(0, len(tokens), 256):
                new = tokens[first : first + 256]
                step = cache.extend(ids, len(new))
                logits = model.forward(new, step, cache)
                cache.commit(step, new)
            return logits

        def whole():
            ids = cache.admit([prompt]).ids
            return ids, computed(ids, prompt)

        def overtaking():
            ids = cache.admit([prompt]).ids
            load = cache.begin_load(ids, [prompt])
            assert load is not None and load.counts[0] == length
            return ids, computed(ids, prompt[length:])

        def rest():
            ids = cache.admit([prompt]).ids
            return ids, computed(ids, prompt[length:])

        ids, expected = clock.time("recompute", whole)
        cache.release(ids)
        cache.flush()
        for _ in range(rounds):
            cache.evict(cache.num_blocks)
            ids, logits = clock.time("overtaking", overtaking)
            assert np.abs(logits - expected).max() < 1e-3
            cache.release(ids)
            cache.evict(cache.num_blocks)
            load = clock.time("load", lambda: _loaded(cache, prompt))
            assert load.loaded == length // spec.block_size
            cache.release(clock.time("compute", rest)[0])
        yield Row(f"{length} tokens of SmolLM2 from disk: load", clock.median("load") * 1e3, "ms")
        yield Row("  compute of the rest", clock.median("compute") * 1e3, "ms")
        yield Row("  both, overlapped: time to first token", clock.median("overtaking") * 1e3, "ms")
        larger = max(clock.median("load"), clock.median("compute"))
        yield Row("  times the larger of the two", clock.median("overtaking") / larger, "x", 1.15)
        gain = clock.median("recompute") / clock.median("overtaking")
        yield Row("  faster than computing all of it", gain, "x", 40, at_least=True)


def _loaded(cache, prompt):
    load = cache.prefetch([prompt])
    load.wait()
    return load


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few and small: does it run, not how fast")
    parser.add_argument("--folder", type=Path, help="where files go; a temporary folder if not given")
    options = parser.parse_args(argv)
    quick, missed = options.quick, 0
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        measured = (
            swaps(2 if quick else 15, 4 if quick else 64),
            disk(1 if quick else 7, GROUP if quick else 2 * GROUP, folder),
            restart(1 if quick else 5, 2000 if quick else 100_000, folder),
            kept_prompt(1 if quick else 5, 64 if quick else 4096, folder),
        )
        for rows in measured:
            for row in rows:
                row.bar = None if quick else row.bar
                print(row, flush=True)
                missed += not row.ok
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
