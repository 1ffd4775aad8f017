"""What is measured: decode steps of some sequences, over one setting of random numbers."""

import numpy as np

from pagedcache import CacheSpec, KVCache

LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 16, 8, 2, 64, 16
CELLS = [(1, 128), (4, 64), (8, 128)]  # sequences, tokens of each


def aligned(shape):
    """Return ones at a multiple of 64 bytes."""
    room = np.zeros(int(np.prod(shape)) + 16, np.float32)
    begin = -room.ctypes.data % 64 // 4
    array = room[begin : begin + int(np.prod(shape))].reshape(shape)
    array[...] = 1
    return array


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

    def pool(self):
        """Return K and V of all layers in ordinary pages, as JAX has them, and not in huge ones, as we do."""
        return [
            tuple(aligned(shape(self.num_blocks)) for shape in (self.spec.key_shape, self.spec.value_shape))
            for _ in range(LAYERS)
        ]

    def cache(self, **options):
        """Return a cache and the handles of its sequences, which have all tokens but for the next one."""
        cache = KVCache(self.spec, num_blocks=self.num_blocks, **({"storage": self.pool()} | options))
        prompts = np.arange(self.sequences * self.tokens).reshape(self.sequences, -1)
        ids = cache.admit(list(prompts)).ids
        cache.commit(cache.extend(ids, self.tokens), prompts.ravel())
        return cache, ids
