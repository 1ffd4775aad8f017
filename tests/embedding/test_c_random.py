"""Random calls of the C interface's cache and of KVCache side by side: same blocks, same bits, same refusals."""

import ml_dtypes
import numpy as np
import pytest
from c_cache import CCache
from c_table import CError

from pagedcache import CacheSpec, KVCache, OutOfBlocks

LAYERS, HEADS, Q_HEADS, DIM, V_DIM, BLOCK, BLOCKS, SEQUENCES = 2, 2, 4, 32, 16, 4, 60, 12
KINDS = [("float32", "NHD"), ("float16", "HND"), ("bfloat16", "NHD"), ("int8", "HND"), ("float8_e4m3", "NHD")]
INPUTS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


class Pair:
    """Two caches that get the same calls; a sequence is (handle in C, handle in Python)."""

    def __init__(self, dtype, layout, seed):
        self.rng = np.random.default_rng(seed)
        self.input = INPUTS.get(dtype, np.float32)
        shape = {"kv_heads": HEADS, "head_dim": DIM, "v_head_dim": V_DIM, "block_size": BLOCK}
        self.c = CCache(
            num_layers=LAYERS,
            num_blocks=BLOCKS,
            max_sequences=SEQUENCES,
            dtype=dtype,
            layout=layout,
            threads=2,
            **shape,
        )
        spec = CacheSpec(layers=LAYERS, dtype=dtype, layout=layout, **shape)
        self.py = KVCache(spec, num_blocks=BLOCKS, backend="cpu", max_sequences=SEQUENCES, threads=1)
        self.alive = []
        self.refused = self.copied = 0
        for layer in range(LAYERS):  # what no query sees may be anything
            for array in (*self.c.arrays(layer)[:2], *self.py.storage.view(layer)):
                array.view(np.uint8)[1:] = 0x7F if dtype == "float8_e4m3" else 0xFF

    def numbers(self, *shape):
        return self.rng.standard_normal(shape, np.float32).astype(self.input)

    def some(self):
        n = self.rng.integers(1, len(self.alive) + 1)
        return [self.alive[i] for i in self.rng.permutation(len(self.alive))[:n]]

    def start(self):
        n = min(int(self.rng.integers(1, 3)), SEQUENCES - len(self.alive))
        theirs = self.py.admit([[]] * n).ids.tolist()
        self.alive += zip(self.c.start(n).tolist(), theirs, strict=True)

    def step(self):
        chosen = self.some()
        counts = self.rng.choice([0, 1, 1, 1, 2, 7, 20], len(chosen)).astype(np.int32)
        ours, theirs = ([pair[side] for pair in chosen] for side in (0, 1))
        try:
            step = self.py.extend(theirs, counts)
        except OutOfBlocks:
            self.refused += 1
            assert not self.c.can_extend(ours, counts)
            with pytest.raises(CError, match="OUT_OF_BLOCKS"):
                self.c.extend(ours, counts)
            return
        assert self.c.can_extend(ours, counts)
        self.c.extend(ours, counts)
        assert len(self.c.copies()) == len(step.copies)
        self.copied += len(step.copies)
        window = int(self.rng.choice([0, 5]))
        for layer in range(LAYERS):
            self.attend(layer, int(counts.sum()), step, window)
        self.c.check()
        if self.rng.random() < 0.7:
            self.c.commit()
            self.py.commit(step, None)
        else:
            self.c.abandon()
            self.py.abandon(step)

    def attend(self, layer, tokens, step, window):
        k, v = self.numbers(tokens, HEADS, DIM), self.numbers(tokens, HEADS, V_DIM)
        q = self.numbers(tokens, Q_HEADS, DIM)
        lse, want_lse = np.empty((2, tokens, Q_HEADS), np.float32)
        out = self.c.attend(layer, q, k, v, window=window, lse=lse)
        self.py.attend(layer, q, k, v, step, lse=want_lse)
        want = self.py.backend.attend(self.py.storage, layer, q, step, window=window or None, lse=want_lse)
        assert out.tobytes() == want.tobytes()
        assert lse.tobytes() == want_lse.tobytes()

    def fork(self):
        if len(self.alive) == SEQUENCES:
            return
        ours, theirs = self.alive[self.rng.integers(len(self.alive))]
        at = int(self.rng.integers(0, self.c.length(ours) + 1))
        at = self.c.length(ours) if self.rng.random() < 0.5 else at
        self.alive.append((self.c.fork(ours, at), int(self.py.fork([theirs], 1, at=at)[0, 0])))

    def truncate(self):
        chosen = self.some()[:2]
        cuts = [int(self.rng.integers(0, self.c.length(ours) + 1)) for ours, _ in chosen]
        self.c.truncate([ours for ours, _ in chosen], cuts)
        self.py.truncate([theirs for _, theirs in chosen], np.array(cuts, np.int32))

    def release(self):
        chosen = self.some()[:2]
        self.c.release([ours for ours, _ in chosen])
        self.py.release([theirs for _, theirs in chosen])
        self.alive = [pair for pair in self.alive if pair not in chosen]

    def compare(self):
        self.c.check()
        ours, theirs = self.c.stats, self.py.stats()
        assert (ours.free_blocks, ours.used_blocks, ours.shared_blocks) == (theirs.free, theirs.used, theirs.shared)
        assert self.c.stats.num_sequences == len(self.alive)
        for ours, theirs in self.alive:
            assert self.c.length(ours) == self.py.sequence(theirs).position


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("dtype", "layout"), KINDS)
def test_same_as_kvcache(dtype, layout, seed):
    pair = Pair(dtype, layout, seed)
    verbs = [pair.start, pair.step, pair.step, pair.step, pair.step, pair.fork, pair.truncate, pair.release]
    for _ in range(250):
        verb = verbs[pair.rng.integers(len(verbs))] if pair.alive else pair.start
        verb()
        pair.compare()
    assert pair.refused > 3 and pair.copied > 10, "the calls were too tame"
    pair.c.release([ours for ours, _ in pair.alive])
    assert pair.c.stats.free_blocks == BLOCKS
    pair.c.close()
