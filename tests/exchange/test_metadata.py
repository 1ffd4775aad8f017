"""Caches that are metadata only: what the tables tell is enough for a pool that somebody else holds."""

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache, SequenceTable

BLOCK, BLOCKS, WIDTH = 4, 24, 3


class NumpyPool:
    """K of one layer, written in place."""

    def __init__(self):
        self.rows = np.zeros((BLOCKS + 1, BLOCK, WIDTH), np.float32)

    def copy(self, pairs):
        self.rows[pairs[:, 1]] = self.rows[pairs[:, 0]]

    def put(self, slots, values):
        self.rows.reshape(-1, WIDTH)[slots] = values

    def move(self, src, dst):
        flat = self.rows.reshape(-1, WIDTH)
        flat[dst] = flat[src]

    def read(self, blocks):
        return np.asarray(self.rows[blocks])


class JaxPool(NumpyPool):
    """The same as arrays that never change."""

    def __init__(self):
        self.rows = pytest.importorskip("jax.numpy").zeros((BLOCKS + 1, BLOCK, WIDTH), "float32")

    def copy(self, pairs):
        self.rows = self.rows.at[pairs[:, 1]].set(self.rows[pairs[:, 0]])

    def put(self, slots, values):
        self.rows = self.rows.reshape(-1, WIDTH).at[slots].set(values).reshape(self.rows.shape)

    def move(self, src, dst):
        self.put(dst, self.rows.reshape(-1, WIDTH)[src])


class Owner:
    """A framework with a pool of its own: tokens of a sequence are seen where its block table leads."""

    def __init__(self, pool):
        self.cache = KVCache(CacheSpec(1, 1, WIDTH, block_size=BLOCK), num_blocks=BLOCKS, storage="metadata")
        self.pool, self.written, self.steps = pool, {}, 0

    def step(self, ids, counts, accepted=None, depths=None):
        step, self.steps = self.cache.extend(ids, counts, depths=depths), self.steps + 1
        self.pool.copy(step.copies)
        values = np.random.default_rng(self.steps).random((step.num_tokens, WIDTH), np.float32)
        self.pool.put(step.slots, values)
        news = np.split(values, step.qo_indptr[1:-1])
        if accepted is not None:
            self.pool.move(*step.moves(accepted))
            news = [new[path] for new, path in zip(news, accepted, strict=True)]
        for sid, new in zip(ids, news, strict=True):
            self.written[sid] = [*self.written.get(sid, []), *new]
        self.cache.commit(step, np.arange(self.steps * 100, self.steps * 100 + step.num_tokens), accepted)

    def verify(self):
        for sid, expected in self.written.items():
            rows = self.pool.read(self.cache.sequence(sid).block_table).reshape(-1, WIDTH)
            np.testing.assert_array_equal(rows[: len(expected)], np.array(expected))


@pytest.fixture(params=[NumpyPool, JaxPool])
def owner(request):
    owner = Owner(request.param())
    yield owner
    owner.cache.check()
    owner.cache.close()


def test_forks_diverge_after_the_copies_of_their_step(owner):
    (parent,) = owner.cache.admit([[1] * 6]).ids.tolist()
    owner.step([parent], [6])
    (kids,) = owner.cache.fork([parent], 2).tolist()
    owner.written |= dict.fromkeys(kids, owner.written[parent])
    owner.step([parent, *kids], [3, 1, 2])
    owner.verify()


def test_accepted_tokens_are_where_the_moves_put_them(owner):
    (sid,) = owner.cache.admit([[1] * 3]).ids.tolist()
    owner.step([sid], [3])
    owner.step([sid], [3], accepted=[[0, 2]], depths=[0, 1, 1])
    owner.verify()


def test_what_is_swapped_comes_back_where_swap_in_says(owner):
    tables: SequenceTable = owner.cache.sequences
    (sid,) = owner.cache.admit([[1] * 6]).ids.tolist()
    owner.step([sid], [6])
    blocks, _ = tables.swap_list([sid])
    saved = owner.pool.read(blocks)
    tables.swap_out([sid], blocks)
    owner.pool.copy(np.array([[0, block] for block in blocks.tolist()]))  # lost
    places = tables.swap_in([sid])
    for block, rows in zip(places.tolist(), saved, strict=True):
        owner.pool.put(block * BLOCK + np.arange(BLOCK), rows)
    owner.verify()


def test_what_is_compacted_is_where_compaction_says(owner):
    pool = owner.cache.pool
    filler = pool.allocate(BLOCKS)
    odd = (filler % 2 == 1) | (filler < 4) | (filler >= 20)
    pool.decref(filler[~odd])  # so that rows lie in every other block
    ids = owner.cache.admit([[], []]).ids.tolist()
    for _ in range(4):
        for sid in ids:
            owner.step([sid], [BLOCK])
    pool.decref(filler[odd])
    pairs = owner.cache.sequences.compaction()
    owner.pool.copy(pairs)
    assert owner.cache.sequences.compact(pairs) == len(pairs) > 0
    owner.verify()
