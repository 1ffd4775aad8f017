"""Attention of the backends against the textbook way: gather the blocks, then one softmax per sequence."""

import numpy as np

HEADS = {"9/3/64": (9, 3, 64), "32/8/128": (32, 8, 128)}  # query heads, key/value heads, head size
BATCHES = {"decode 8 x 512": (8, 512, 1), "decode 8 x 2048": (8, 2048, 1), "prefill 512": (1, 512, 512)}
BLOCK_SIZE = 16


def naive(q, k_pool, v_pool, block_tables, kv_lens, qo_indptr):
    """Gather the K/V of each sequence into contiguous arrays and attend, bottom-right causal."""
    outs = []
    group = q.shape[1] // k_pool.shape[2]
    for i, length in enumerate(kv_lens):
        rows = q[qo_indptr[i] : qo_indptr[i + 1]]
        blocks = block_tables[i, : -(-length // k_pool.shape[1])]
        k = k_pool[blocks].reshape(-1, *k_pool.shape[2:])[:length].repeat(group, axis=1)
        v = v_pool[blocks].reshape(-1, *v_pool.shape[2:])[:length].repeat(group, axis=1)
        scores = rows.transpose(1, 0, 2) @ k.transpose(1, 2, 0) / np.sqrt(np.float32(q.shape[2]))
        hidden = np.arange(length) > np.arange(length - len(rows), length)[:, None]
        scores[:, hidden] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        outs.append((weights @ v.transpose(1, 0, 2)).transpose(1, 0, 2))
    return np.concatenate(outs)


class Attention:
    """One layer, float32, block size 16, scattered blocks."""

    params = [list(HEADS), list(BATCHES), ["cpu", "numpy", "naive gather"]]
    param_names = ["heads", "batch", "way"]
    timeout = 120

    def setup(self, heads, batch, way):
        from pagedcache import CacheSpec
        from pagedcache.backends import protocol
        from pagedcache.core import Step

        q_heads, kv_heads, head_dim = HEADS[heads]
        sequences, context, queries = BATCHES[batch]
        rng = np.random.default_rng(0)
        blocks = sequences * (context // BLOCK_SIZE)
        tables = (rng.permutation(blocks).astype(np.int32) + 1).reshape(sequences, -1)
        kv_lens = np.full(sequences, context, np.int32)
        qo_indptr = np.arange(sequences + 1, dtype=np.int32) * np.int32(queries)
        self.step = Step.from_arrays(tables, kv_lens, qo_indptr, block_size=BLOCK_SIZE)

        spec = CacheSpec(layers=1, kv_heads=kv_heads, head_dim=head_dim, dtype="float32", block_size=BLOCK_SIZE)
        if way not in (*protocol.names(), "naive gather"):
            raise NotImplementedError
        self.backend = protocol.get("numpy" if way == "naive gather" else way)
        self.storage = self.backend.allocate(spec, blocks)
        slots = np.arange(BLOCK_SIZE, (blocks + 1) * BLOCK_SIZE, dtype=np.int64)
        k, v = rng.standard_normal((2, len(slots), kv_heads, head_dim), dtype=np.float32)
        self.backend.write(self.storage, 0, k, v, slots)
        self.q = rng.standard_normal((sequences * queries, q_heads, head_dim), dtype=np.float32)
        self.gathered = self.q, *self.storage.view(0), tables, kv_lens, qo_indptr
        self.attend = self.by_gather if way == "naive gather" else self.by_backend

    def by_backend(self):
        return self.backend.attend(self.storage, 0, self.q, self.step)

    def by_gather(self):
        return naive(*self.gathered)

    def time_attend(self, heads, batch, way):
        self.attend()
