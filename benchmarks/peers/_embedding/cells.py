"""What is measured: decode steps of some sequences, over one setting of random numbers."""

import numpy as np

from pagedcache import CacheSpec, KVCache

LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 16, 8, 2, 64, 16
CELLS = [(1, 128), (4, 64), (8, 128)]  # sequences, tokens of each


class Setting:
    """Sequences of one length, all different."""

    def __init__(self, sequences, tokens):
        self.sequences, self.tokens = sequences, tokens
        self.num_blocks = sequences * (tokens // BLOCK_SIZE + 2)
        self.spec = CacheSpec(layers=LAYERS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=BLOCK_SIZE)
        rng = np.random.default_rng(0)
        self.q, self.k, self.v = (
            rng.standard_normal((sequences, heads, HEAD_DIM)).astype(np.float32)
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        )

    def cache(self, **options):
        """Return a cache and the handles of its sequences, which have all tokens but for the next one."""
        cache = KVCache(self.spec, num_blocks=self.num_blocks, **options)
        prompts = np.arange(self.sequences * self.tokens).reshape(self.sequences, -1)
        ids = cache.admit(list(prompts)).ids
        if cache.storage is not None:
            for key, value in cache.storage.export(writable=True):
                key[1:], value[1:] = 0.5, 0.25
        cache.commit(cache.extend(ids, self.tokens), prompts.ravel())
        return cache, ids
