"""A KVCache with several layer groups, and beside it a dense float64 oracle that keeps every token."""

from itertools import accumulate

import numpy as np

from pagedcache import CacheSpec, KVCache
from pagedcache.core import AdmitStatus
from pagedcache.errors import OutOfBlocks
from pagedcache.spec import LayerGroup
from pagedcache.testing import packed_masks, rounded
from pagedcache.testing.scenes import tolerance

HEADS, Q_HEADS, DIM = 1, 2, 8
FULL = LayerGroup(1)
SINKS = LayerGroup(2, kind="sliding_window", window=6, sink_tokens=3)
SLIDING = LayerGroup(1, kind="sliding_window", window=5)
CHUNKED = LayerGroup(1, kind="chunked_local", window=7)
MIXED = (FULL, SINKS, SLIDING, CHUNKED, FULL)

_RANDOM = np.random.default_rng(0)
_OF_TOKENS, _OF_PLACES = _RANDOM.standard_normal((2, 8, 256, 2, HEADS, DIM)).astype(np.float32) * np.float32(0.7)
_QUERIES = _RANDOM.standard_normal((8, 256, Q_HEADS, DIM)).astype(np.float32)


def make_cache(num_blocks=150, *, groups=MIXED, dtype="float32", block_size=4, max_step_tokens=8, **options):
    layers = sum(group.layers for group in groups)
    spec = CacheSpec(
        layers, HEADS, DIM, dtype=dtype, block_size=block_size, groups=groups, max_step_tokens=max_step_tokens
    )
    return KVCache(spec, num_blocks=num_blocks, **options)


def kv_of(layer, tokens, positions):
    """K and V [tokens, heads, dim] of tokens at their positions: no two slots of a pool should hold the same."""
    both = _OF_TOKENS[layer, np.asarray(tokens, np.int64)] + _OF_PLACES[layer, np.asarray(positions, np.int64)]
    return np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])


def sees(group, query, key):
    """Whether a query at a position sees a key at another, at or before it."""
    if group.kind == "full":
        return True
    if group.kind == "chunked_local":
        return key // group.window == query // group.window
    return key > query - group.window or key < group.sink_tokens


def attention(q, k, v, seen):
    """float64 [tokens, q_heads, dim]; seen is bool [tokens, keys]."""
    out = np.zeros((len(q), Q_HEADS, DIM))
    for head in range(Q_HEADS):
        scores = q[:, head].astype(np.float64) @ k[:, head * HEADS // Q_HEADS].astype(np.float64).T * DIM**-0.5
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, head * HEADS // Q_HEADS].astype(np.float64)
    return out


def tree_of(parents):
    """(depths, mask) of new tokens, each with the index of the one that it continues, -1 for the sequence's end."""
    depths, mask = [], np.eye(len(parents), dtype=bool)
    for k, parent in enumerate(parents):
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        if parent >= 0:
            mask[k] |= mask[parent]
    return depths, mask


class Rows:
    """Runs steps; every output of every layer is compared with the oracle."""

    def __init__(self, cache):
        self.cache, self.spec = cache, cache.spec
        self.tokens, self.pads = {}, {}

    def admit(self, prompt, *, computed=None, pad=0, **options):
        """Admit a prompt and compute it in steps as long as may be."""
        admission = self.cache.admit([prompt], pads=[pad] if pad else None, **options)
        if admission.status[0] == AdmitStatus.NOT_NOW:
            raise OutOfBlocks("not now")
        [sid], [cached] = admission.ids.tolist(), admission.cached.tolist()
        self.tokens[sid], self.pads[sid] = list(prompt[:cached]), pad
        most = self.spec.max_step_tokens
        for first in range(cached, len(prompt) if computed is None else computed, most):
            self.run({sid: prompt[first : first + most]})
        return sid

    def run(self, new, *, parents=None, accepted=None, abandon=False, **options):
        """A step of these tokens, by handle: float32 outputs of all layers. `parents` make each row's a tree."""
        trees = None if parents is None else [tree_of(parents[sid]) for sid in new]
        depths = None if trees is None else [depth for row, _ in trees for depth in row]
        step = self.cache.extend(list(new), [len(tokens) for tokens in new.values()], depths=depths, **options)
        outs = self.attend(step, new, trees)
        flat = [token for tokens in new.values() for token in tokens]
        if abandon:
            self.cache.abandon(step)
            return outs
        self.cache.commit(step, flat, None if accepted is None else [accepted[sid] for sid in new])
        for sid, tokens in new.items():
            self.tokens[sid] += tokens if accepted is None else [tokens[k] for k in accepted[sid]]
        return outs

    def compute(self, layer, step, tokens, **masks):
        """One layer of a step: what attend returns; tokens None: K and V are there already."""
        k, v = (None, None) if tokens is None else kv_of(layer, tokens, step.positions)
        return self.cache.attend(layer, _QUERIES[layer, step.positions], k, v, step, **masks)

    def attend(self, step, new, trees=None):
        """All layers of a step, compared."""
        outs, layer = [], 0
        masks = {} if trees is None else packed_masks([mask for _, mask in trees])
        flat = [token for tokens in new.values() for token in tokens]
        for group in self.spec.groups:
            for _ in range(group.layers):
                out = self.compute(layer, step, flat, **masks)
                self.cache.backend.synchronize()
                self._compare(layer, group, step, new, trees, out)
                outs.append(np.array(out))
                layer += 1
        return np.concatenate([out.ravel() for out in outs])

    def _compare(self, layer, group, step, new, trees, out):
        q = _QUERIES[layer, step.positions]
        first = [0, *accumulate(map(len, new.values()))]
        for i, (sid, tokens) in enumerate(new.items()):
            if not tokens:
                continue
            mine = slice(first[i], first[i + 1])
            known = self.tokens[sid]
            places = np.array([*range(len(known)), *step.positions[mine]])
            k, v = (rounded(both, self.spec.dtype) for both in kv_of(layer, known + list(tokens), places))
            seen = np.array([[sees(group, query, key) for key in places] for query in step.positions[mine]])
            causal = np.tri(len(tokens), dtype=bool) if trees is None else trees[i][1]
            seen[:, len(known) :] &= causal
            error = np.abs(out[mine] - attention(q[mine], k, v, seen)).max() / np.abs(v).max()
            assert error <= 4 * tolerance(self.cache.backend, self.spec.dtype), (layer, group.kind, i, error)

    def fork(self, sid, at=None):
        [[kid]] = self.cache.fork([sid], at=at).tolist()
        self.tokens[kid] = self.tokens[sid][: None if at is None else at - self.pads[sid]]
        self.pads[kid] = self.pads[sid]
        return kid

    def truncate(self, sid, at):
        self.cache.truncate([sid], at)
        self.tokens[sid] = self.tokens[sid][: at - self.pads[sid]]

    def reorder(self, ids, parents):
        self.cache.reorder(ids, parents)
        former = [(self.tokens[ids[parent]], self.pads[ids[parent]]) for parent in parents]
        for sid, (tokens, pad) in zip(ids, former, strict=True):
            self.tokens[sid], self.pads[sid] = list(tokens), pad

    def release(self, *sids):
        self.cache.release(list(sids))
        for sid in sids:
            del self.tokens[sid], self.pads[sid]

    def overwrite(self):
        """Fill every block that nobody holds with other bytes, cached ones too."""
        free = self.cache.pool.allocate(self.cache.pool.num_free)
        for planes in self.cache.storage.export(writable=True):
            for array in planes:
                array[free] = 77
        self.cache.pool.decref(free)


def published(rows, prompt):
    """Bytes of all that the prefix cache has of a prompt and a sequence that goes on with it needs, by group."""
    cache, found = rows.cache, []
    admission = cache.admit([[*prompt, 255]])
    [sid], [cached] = admission.ids.tolist(), admission.cached.tolist()
    whole, layer = cached // rows.spec.block_size, 0
    for number, group in enumerate(rows.spec.groups):
        layers = list(range(layer, layer + group.layers))
        layer += group.layers
        blocks = cache.sequences.block_table(sid, number)[:whole]
        for at in np.flatnonzero(blocks):
            record = cache.backend.read_blocks(cache.storage, blocks[at : at + 1], layers=layers)
            found.append((number, int(at), np.asarray(record).tobytes()))
    cache.release([sid])
    return whole, found
