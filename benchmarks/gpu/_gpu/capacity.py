"""How many sequences fit in the same memory, paged and with room for the longest each, and what that is worth.

Both have the same kernels, so that they differ in nothing but the number of sequences. A decode step reads all weights
once however many there are; a product with weights of a model of seven billion parameters stands for that.
"""

import time

import numpy as np

from pagedcache import CacheSpec, KVCache

LAYERS, HEADS = 32, (32, 8, 128)
LONGEST, BUDGET = 4096, 16 << 30  # tokens; bytes of K and V
WEIGHTS = (4096, 53248)  # of each layer, float16: 14 GB in all
STEPS = 20


def rows(device, shrink):
    small = shrink != 1
    layers, longest = (2, 64) if small else (LAYERS, LONGEST)
    spec = CacheSpec(layers, 1 if small else HEADS[1], HEADS[2], dtype="float16")
    budget = spec.pool_nbytes(16) if small else BUDGET
    lengths = drawn(longest)
    for name, count in counts(spec, budget, lengths, longest).items():
        yield decoding(
            device, spec, name, lengths[:count], longest, (64, 64) if small else WEIGHTS, 2 if small else STEPS
        )


def drawn(longest, count=4096):
    """Lengths of what is being decoded: log-uniform from a 32nd of the longest to the longest less what is to come."""
    rng = np.random.default_rng(4)
    return np.exp(rng.uniform(np.log(longest / 32), np.log(longest - STEPS - 2), count)).astype(int)


def counts(spec, budget, lengths, longest):
    """How many of these sequences fit in a budget."""
    blocks = spec.blocks_for(budget)
    paged = np.cumsum(-(-(lengths + STEPS + 1) // spec.block_size))
    return {"contiguous": blocks * spec.block_size // longest, "paged": int((paged <= blocks).sum())}


def decoding(device, spec, name, lengths, longest, weights, steps):
    """Decode with so many sequences of these lengths, whose K and V are what the memory holds."""
    kv_heads, size = spec.groups[0].kv_heads, spec.groups[0].head_dim
    count, q_heads = len(lengths), 4 * kv_heads
    blocks = int((-(-(lengths + steps + 1) // spec.block_size)).sum())
    cache = KVCache(spec, num_blocks=blocks, backend=device.backend, max_sequences=count, max_length=longest)
    ids = cache.admit([np.arange(length) + longest * i for i, length in enumerate(lengths)]).ids
    cache.commit(cache.extend(ids, lengths - 1), None)
    q = device.put(np.ones((count, q_heads, size), np.float16))
    k, v = (device.put(np.ones((count, kv_heads, size), np.float16)) for _ in range(2))
    out = device.empty(q.shape, np.float16)
    matrix, hidden = (device.put(np.ones(shape, np.float16)) for shape in (weights, (count, weights[0])))
    attending = host = 0.0
    for number in range(-2, steps):  # two to warm up
        begin = time.perf_counter()
        step = cache.extend(ids, 1)
        for layer in range(spec.layers):
            cache.attend(layer, q, k, v, step, out=out)
        launched = time.perf_counter()
        device.synchronize()
        done = time.perf_counter()
        cache.commit(step, None)
        if number >= 0:
            attending, host = attending + done - begin, host + launched - begin
    product = min(device.times(lambda: hidden @ matrix, 5))
    cache.close()
    device.free()
    step_ms, weights_ms = attending / steps * 1e3, product * spec.layers * 1e3
    return {
        "kind": "capacity", "name": name, "sequences": count, "tokens": int(lengths.sum()), "longest": longest,
        "attend_ms": step_ms, "host_ms": host / steps * 1e3, "weights_ms": weights_ms,
        "tokens_per_s": count / (step_ms + weights_ms) * 1e3,
    }  # fmt: skip
