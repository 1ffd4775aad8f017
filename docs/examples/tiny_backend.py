"""
A backend of one's own
======================

Attention of one query at a time, in plain NumPy: the smallest backend that passes the conformance suite. Its pool is in
the host's memory, so ``pagedcache.backends.host`` has the storage, the records and the checks of what comes in; what is
left to write is what this backend is about.
"""

import numpy as np

from pagedcache import CacheSpec, KVCache
from pagedcache.backends import Capabilities
from pagedcache.backends.host import HostStorage, batch, merge, moves
from pagedcache.backends.host.arguments import output, slots
from pagedcache.backends.host.formats import numbers
from pagedcache.backends.host.queries import parts_of, shape_of_q
from pagedcache.backends.host.rule import chosen_precision, make_rule
from pagedcache.errors import UnsupportedByBackend


class TinyBackend:
    """float32, NHD, causal attention and nothing else; whatever else is asked for is refused by what it says here."""

    name = "tiny"
    device = "cpu"
    capabilities = Capabilities(
        dtypes=frozenset({"float32"}),
        layouts=frozenset({"NHD"}),
        max_block_size=1024,
        head_dims=None,
        variants=frozenset(),
        precisions={"float32": "exact"},
        synchronous=True,
    )

    def allocate(self, spec, num_blocks, buffers=None):
        self.capabilities.require(spec)
        return HostStorage(spec, num_blocks, buffers)

    def write(self, storage, layer, k, v, slots_):
        spec = storage.spec
        at = slots("slots", slots_, storage.num_blocks, spec.block_size, distinct=False)
        arrays = []
        for name, values, width in (("k", k, spec.head_dim), ("v", v, spec.v_head_dim)):
            array = numbers(name, values, spec.dtype)
            if array.shape != (at.size, spec.kv_heads, width):
                raise ValueError(f"{name} has shape {array.shape}; it must be {(at.size, spec.kv_heads, width)}")
            arrays.append(array)
        for plane, array in zip(storage.raw(layer), arrays, strict=True):
            plane[at // spec.block_size, at % spec.block_size] = array

    def attend(
        self, storage, layer, q, step, *, precision=None, mask=None, mask_indptr=None, out=None, lse=None, **variants
    ):
        # First everything is checked, so that a call that raises has changed nothing.
        spec = storage.spec
        queries = numbers("q", q, spec.dtype)
        tokens, q_heads, _ = shape_of_q(queries, spec)
        chosen_precision(self.name, precision, ["exact"])
        rule = make_rule(q_heads, spec.head_dim, **variants)
        given = {**variants, "mask": mask, "scale": None, "sink_tokens": variants.get("sink_tokens") or None}
        if lacking := [name for name, value in given.items() if value is not None]:
            raise UnsupportedByBackend(f"backend 'tiny' lacks {', '.join(lacking)}")
        masks = batch.trees(mask, mask_indptr, step.qo_indptr)
        group = spec.locate(layer)[0]
        sights = batch.sequences(step, group, spec.block_size, storage.num_blocks, tokens, rule, masks)
        batch.shared_prefixes(step, sights, spec.block_size)  # what several see may be computed once, or not
        shape = (tokens, q_heads, spec.v_head_dim)
        out = output("out", out, shape, (queries.dtype, np.dtype(np.float32)))
        lse = output("lse", lse, shape[:2], (np.dtype(np.float32),))

        keys, values = storage.raw(layer)
        for row, sight in enumerate(sights):
            first = int(step.qo_indptr[row])
            for i in range(len(sight.places)):
                one = sight.panel(slice(i, i + 1))
                seen = one.keys  # of the sequence's tokens, those that this query sees
                at = sight.table[seen // spec.block_size], seen % spec.block_size
                result, log = attend_one(queries[first + i], keys[at], values[at], rule.scale)
                with np.errstate(over="ignore"):
                    out[first + i] = result
                lse[first + i] = log
        return out

    def merge(self, outs, lses):
        _, values, logs = parts_of(outs, lses)
        with np.errstate(all="ignore"):
            return merge.merged(values.astype(np.float32), logs)

    # Blocks and slots are moved as in any host memory.
    def copy_blocks(self, storage, pairs):
        moves.copy_blocks(storage, pairs)

    def copy_slots(self, storage, src, dst):
        moves.copy_slots(storage, src, dst)

    def read_blocks(self, storage, ids, layers=None, into=None):
        return moves.read_blocks(storage, ids, layers, into)

    def write_blocks(self, storage, ids, data, layers=None):
        moves.write_blocks(storage, ids, data, layers)

    def synchronize(self):
        pass

    def fence(self):
        return 0


def attend_one(query, keys, values, scale):
    """One query [q_heads, dim] over keys [n, kv_heads, dim] and values; float64 [q_heads, v_dim] and lse [q_heads]."""
    if not len(keys):
        return 0.0, -np.inf
    group = len(query) // keys.shape[1]  # query heads that read one KV head
    with np.errstate(all="ignore"):  # infinities and NaN of live tokens take their course
        grouped = query.astype(np.float64).reshape(keys.shape[1], group, -1)
        scores = scale * np.einsum("hgd,nhd->hgn", grouped, keys)
        highest = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - highest)
        total = weights.sum(axis=-1, keepdims=True)
        result = np.einsum("hgn,nhd->hgd", weights / total, values)
        return result.reshape(len(query), -1), (highest + np.log(total)).ravel()


# %%
# An instance is all that a cache needs:

cache = KVCache(CacheSpec(layers=1, kv_heads=2, head_dim=8), num_blocks=8, backend=TinyBackend())
ids = cache.admit([[1, 2, 3]]).ids
step = cache.extend(ids, [3])
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((3, heads, 8), dtype=np.float32) for heads in (4, 2, 2))
out = cache.attend(0, q, k, v, step)
cache.commit(step, [1, 2, 3])
print(np.allclose(out[0], v[0].repeat(2, axis=0)), "the first token sees itself alone")
