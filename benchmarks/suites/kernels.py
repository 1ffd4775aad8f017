"""The cpu backend by instruction set: decoding, prefill and writing, on one thread."""

import numpy as np

BLOCK_SIZE = 16
HEADS = {"9/3/64": (9, 3, 64), "32/8/128": (32, 8, 128), "8/1/256": (8, 1, 256)}  # query heads, KV heads, head size
ISAS = ["baseline", "avx2", "avx512", "avx512bf16", "neon"]


class Kernels:
    """One layer over scattered blocks; subclasses say which batch."""

    params = [ISAS, list(HEADS), ["float32", "bfloat16", "int8"]]
    param_names = ["isa", "heads", "dtype"]
    timeout = 120
    sequences, context, queries = 8, 1024, 1

    def setup(self, isa, heads, dtype):
        try:
            from pagedcache.backends.cpu import CpuBackend, _native
        except ImportError as error:  # a commit before there was one
            raise NotImplementedError from error
        if isa not in _native.supported():
            raise NotImplementedError(f"this processor has no {isa}")
        from pagedcache import CacheSpec
        from pagedcache.core import Step

        _native.use(isa)
        q_heads, kv_heads, head_dim = HEADS[heads]
        rng = np.random.default_rng(0)
        blocks = self.sequences * self.context // BLOCK_SIZE
        tables = (rng.permutation(blocks).astype(np.int32) + 1).reshape(self.sequences, -1)
        kv_lens = np.full(self.sequences, self.context, np.int32)
        qo_indptr = np.arange(self.sequences + 1, dtype=np.int32) * self.queries
        self.step = Step.from_arrays(tables, kv_lens, qo_indptr, block_size=BLOCK_SIZE)
        spec = CacheSpec(layers=1, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, block_size=BLOCK_SIZE)
        self.backend = CpuBackend(threads=1)
        self.storage = self.backend.allocate(spec, blocks)
        self.slots = rng.permutation(np.arange(BLOCK_SIZE, (blocks + 1) * BLOCK_SIZE, dtype=np.int64))
        self.k, self.v = rng.standard_normal((2, len(self.slots), kv_heads, head_dim), dtype=np.float32)
        self.backend.write(self.storage, 0, self.k, self.v, self.slots)
        self.q = rng.standard_normal((self.sequences * self.queries, q_heads, head_dim), dtype=np.float32)
        self.out = np.empty_like(self.q)


class Decode(Kernels):
    """One query of each of 8 sequences over 1024 keys."""

    def time_attend(self, isa, heads, dtype):
        self.backend.attend(self.storage, 0, self.q, self.step, out=self.out)


class Prefill(Kernels):
    """512 queries over as many keys."""

    sequences, context, queries = 1, 512, 512

    def time_attend(self, isa, heads, dtype):
        self.backend.attend(self.storage, 0, self.q, self.step, out=self.out)


class Write(Kernels):
    """8192 tokens to scattered slots."""

    def time_write(self, isa, heads, dtype):
        self.backend.write(self.storage, 0, self.k, self.v, self.slots)
