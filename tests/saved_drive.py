"""Caches that can be saved, for the tests of save, restore and load; and what of a cache must come back."""

import numpy as np
from kv_drive import DIM, HEADS, LAYERS, Rows

from pagedcache import CacheSpec, KVCache

DTYPES = ["float32", "float16", "bfloat16", "int8", "float8_e4m3"]
PROMPT = list(range(100, 111))  # two full blocks of four, and three tokens


def make_cache(num_blocks=24, dtype="float32", layout="NHD", fingerprint=b"tiny", **options):
    spec = CacheSpec(LAYERS, HEADS, DIM, block_size=4, dtype=dtype, layout=layout, fingerprint=fingerprint)
    return KVCache(spec, num_blocks=num_blocks, **options)


def rows_of(cache, tokens):
    """The driver of a cache that holds these sequences: handle -> tokens."""
    rows = Rows(cache)
    rows.tokens.update({int(sid): list(own) for sid, own in tokens.items()})
    return rows


def records_of(cache, sid):
    """Bytes of the slots that a sequence has filled, [tokens, ...] of each array of each layer."""
    sequence, found = cache.sequence(sid), []
    at = np.arange(sequence.position - sequence.length, sequence.position)
    blocks, offsets = sequence.block_table[at // 4], at % 4
    for layer in range(cache.spec.layers):
        for array in (*cache.storage.view(layer), *(cache.storage.scales(layer) or ())):
            nhd = np.asarray(array) if cache.spec.layout == "NHD" else np.asarray(array).swapaxes(1, 2)
            found.append(np.ascontiguousarray(nhd[blocks, offsets]).view(np.uint8).tobytes())
    return found


def state(cache):
    """What a refused restore must leave as it was."""
    stats = cache.stats()
    return stats.free, stats.cached, stats.used, stats.sequences, stats.published, stats.evictions, stats.swapped


def random_rows(cache, prompt, seed=0, **options):
    """A sequence with random K/V, admitted and computed; its handle."""
    admission = cache.admit([prompt], **options)
    [sid] = admission.ids.tolist()
    decode(cache, sid, prompt[int(admission.cached[0]) :], seed)
    return sid


def decode(cache, sid, tokens, seed=1):
    """Tokens computed with random queries, keys and values: what attention gave in all layers."""
    random = np.random.default_rng(seed)
    step = cache.extend([sid], [len(tokens)])
    outs = []
    for layer in range(cache.spec.layers):
        q, k, v = random.standard_normal((3, len(tokens), HEADS, DIM)).astype(np.float32)
        outs.append(np.array(cache.attend(layer, q, k, v, step)))
    cache.commit(step, tokens)
    return np.stack(outs)
