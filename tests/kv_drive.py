"""A KVCache whose bytes tell which token, layer and head they stand for, so that a wrong move cannot hide."""

import numpy as np

from pagedcache import CacheSpec, KVCache
from pagedcache.backends import get

LAYERS, HEADS, DIM = 2, 2, 4


def make_cache(num_blocks=24, dtype="float32", layout="NHD", fingerprint=None, **options):
    spec = CacheSpec(
        layers=LAYERS, kv_heads=HEADS, head_dim=DIM, block_size=4, dtype=dtype, layout=layout, fingerprint=fingerprint
    )
    return KVCache(spec, num_blocks=num_blocks, **options)


def kv_of(tokens, layer):
    """K and V [tokens, heads, dim]: exact in float16 for tokens below 500."""
    k = np.asarray(tokens, np.float32).reshape(-1, 1, 1) + np.arange(HEADS, dtype=np.float32).reshape(1, -1, 1) / 4
    return np.tile(k + layer / 2, (1, 1, DIM)), np.tile(-k - layer / 2, (1, 1, DIM))


class Replaced:
    """The NumPy backend with some methods replaced: what others would do, or fail to do."""

    def __init__(self, **methods):
        self.__dict__.update(methods)

    def __getattr__(self, name):
        return getattr(get("numpy"), name)


class Rows:
    """Runs steps and knows which tokens each sequence has; `verify` compares every byte."""

    def __init__(self, cache):
        self.cache, self.tokens = cache, {}

    def admit(self, prompt, **options):
        admission = self.cache.admit([prompt], **options)
        [sid], [cached] = admission.ids.tolist(), admission.cached.tolist()
        self.tokens[sid] = list(prompt[:cached])
        self.run({sid: prompt[cached:]})
        return sid

    def write(self, step, tokens):
        """K/V of a step's new tokens, in every layer."""
        for layer in range(LAYERS):
            self.cache.attend(layer, np.ones((len(tokens), HEADS, DIM), np.float32), *kv_of(tokens, layer), step)

    def run(self, new):
        step = self.cache.extend(list(new), [len(tokens) for tokens in new.values()])
        flat = [token for tokens in new.values() for token in tokens]
        self.write(step, flat)
        self.cache.commit(step, flat)
        for sid, tokens in new.items():
            self.tokens[sid] += tokens

    def fork(self, sid, at=None):
        [[kid]] = self.cache.fork([sid], at=at)
        self.tokens[int(kid)] = self.tokens[sid][:at]
        return int(kid)

    def release(self, *sids):
        self.cache.release(list(sids))
        for sid in sids:
            del self.tokens[sid]

    def overwrite(self):
        """Write over every block that nobody holds."""
        free = self.cache.stats().free
        [sid] = self.cache.admit([[]], reserve=4 * free).ids
        step = self.cache.extend([sid], 4 * free)
        self.write(step, [499] * 4 * free)
        self.cache.abandon(step)
        self.cache.release([sid])

    def verify(self, *sids):
        for sid in sids or self.tokens:
            tokens, sequence = self.tokens[sid], self.cache.sequence(sid)
            assert sequence.length == len(tokens)
            at = sequence.position - len(tokens) + np.arange(len(tokens))
            blocks, offsets = sequence.block_table[at // 4], at % 4
            for layer in range(LAYERS):
                for stored, expected in zip(self.cache.storage.view(layer), kv_of(tokens, layer), strict=True):
                    if self.cache.spec.layout == "HND":
                        stored = stored.swapaxes(1, 2)
                    np.testing.assert_array_equal(stored[blocks, offsets].astype(np.float32), expected)
        self.cache.check()
