"""A cache of the C interface with the verbs of KVCache, for tests that drive both alike."""

import ctypes

import numpy as np
from c_table import DTYPES, STORED, Config, Options, Stats, Tensors, address, api, number, require, seen


def handles(ids):
    return np.ascontiguousarray(ids, np.int64).reshape(-1)


def options_of(*, scale=0.0, softcap=0.0, alibi_slopes=None, sink_logits=None, exact=False, threads=0):
    return Options(scale, softcap, address(alibi_slopes), address(sink_logits), exact, threads)


class CCache:
    """Opened with the fields of pagedcache_config."""

    def __init__(self, *, dtype="float32", layout="NHD", **fields):
        self.handle = ctypes.c_void_p()
        config = Config(dtype=DTYPES.index(dtype), layout=["NHD", "HND"].index(layout), **fields)
        require(api.open(ctypes.byref(config), ctypes.byref(self.handle)))

    def close(self):
        api.close(self.handle)
        self.handle = None

    def start(self, n):
        ids = np.zeros(n, np.int64)
        require(api.start(self.handle, n, address(ids)))
        return ids

    def extend(self, ids, counts):
        ids, counts = handles(ids), np.ascontiguousarray(counts, np.int32)
        require(api.extend(self.handle, len(ids), address(ids), address(counts)))
        return api.step(self.handle).contents

    def can_extend(self, ids, counts):
        ids, counts = handles(ids), np.ascontiguousarray(counts, np.int32)
        return api.can_extend(self.handle, len(ids), address(ids), address(counts)) == 0

    def copies(self):
        n = ctypes.c_int32()
        pairs = api.copies(self.handle, ctypes.byref(n))
        return [(pairs[2 * i], pairs[2 * i + 1]) for i in range(n.value)]

    def attend(self, layer, q, k, v, *, window=0, sink_tokens=0, lse=None, out=None, **options):
        if out is None:
            place = api.layer(self.handle, 0).contents
            out = np.empty((*q.shape[:2], place.v_head_dim or place.head_dim), q.dtype)
        heads, dtypes = out.shape[1], [0 if array is None else number(array) for array in (q, k, out)]
        tensors = Tensors(*map(address, (q, k, v, out, lse)), heads, *dtypes, window, sink_tokens)
        require(api.attend_step(self.handle, layer, ctypes.byref(tensors), ctypes.byref(options_of(**options))))
        return out

    def commit(self):
        require(api.commit(self.handle))

    def abandon(self):
        require(api.abandon(self.handle))

    def fork(self, sequence, at=-1):
        child = ctypes.c_int64()
        require(api.fork(self.handle, sequence, at, ctypes.byref(child)))
        return child.value

    def truncate(self, ids, positions):
        ids, positions = handles(ids), np.ascontiguousarray(positions, np.int32)
        require(api.truncate(self.handle, len(ids), address(ids), address(positions)))

    def release(self, ids):
        ids = handles(ids)
        require(api.release(self.handle, len(ids), address(ids)))

    def length(self, sequence):
        return api.length(self.handle, sequence)

    @property
    def stats(self):
        figures = Stats()
        api.stats(self.handle, ctypes.byref(figures))
        return figures

    def check(self):
        require(api.check(self.handle))

    def arrays(self, layer):
        """K, V and their scales (or None), as they lie."""
        place = api.layer(self.handle, layer).contents
        order = (place.block_size, place.kv_heads) if place.layout == 0 else (place.kv_heads, place.block_size)
        shape = (place.num_blocks + 1, *order)
        stored = STORED[place.dtype]
        k = seen(place.k, (*shape, place.head_dim), stored)
        v = seen(place.v, (*shape, place.v_head_dim or place.head_dim), stored)
        scales = (place.k_scales, place.v_scales)
        return k, v, *(seen(at, shape, np.float32) if at else None for at in scales)
