"""KVCache: the verbs and the bytes together, against a dense float64 softmax over what each sequence holds."""

from dataclasses import replace

import numpy as np
import pytest

from pagedcache import (
    ARC,
    LFUDA,
    LRU,
    S3FIFO,
    CacheSpec,
    KVCache,
    NeverHitFirst,
    OutOfBlocks,
    PriorityTTL,
    Step,
    StepClosed,
)
from pagedcache.backends import get
from pagedcache.testing import reference_attention

LAYERS, KV_HEADS, Q_HEADS, DIM = 2, 2, 4, 8


def make(num_blocks=24, block_size=4, **options):
    spec = CacheSpec(layers=LAYERS, kv_heads=KV_HEADS, head_dim=DIM, block_size=block_size, dtype="float32")
    return KVCache(spec, num_blocks=num_blocks, **options)


def kv_of(tokens, layer):
    """K and V that depend on the token alone: what a prefix hit must give back."""
    rows = [np.random.default_rng((int(token), layer)).standard_normal((2, KV_HEADS, DIM)) for token in tokens]
    k, v = np.asarray(rows, np.float32).reshape(-1, 2, KV_HEADS, DIM).swapaxes(0, 1)
    return k, v


class Driver:
    """Runs steps on a cache and keeps each sequence's tokens, to compare with."""

    def __init__(self, cache):
        self.cache, self.tokens = cache, {}

    def admit(self, prompt, **options):
        admission = self.cache.admit([prompt], **options)
        sid, cached = int(admission.ids[0]), int(admission.cached[0])
        self.tokens[sid] = list(prompt[:cached])
        self.run({sid: prompt[cached:]})
        return sid, cached

    def run(self, new, close="commit"):
        """Append tokens to each sequence, attending in every layer; compare with dense attention."""
        step = self.cache.extend(list(new), [len(tokens) for tokens in new.values()])
        flat = [token for tokens in new.values() for token in tokens]
        rng = np.random.default_rng(len(flat))
        for layer in range(LAYERS):
            q = rng.standard_normal((len(flat), Q_HEADS, DIM)).astype(np.float32)
            out = self.cache.attend(layer, q, *kv_of(flat, layer), step)
            at = 0
            for sid, tokens in new.items():
                k, v = kv_of([*self.tokens[sid], *tokens], layer)
                expected, _ = reference_attention(q[at : at + len(tokens)], k, v)
                np.testing.assert_allclose(out[at : at + len(tokens)], expected, atol=2e-6)
                at += len(tokens)
        if close == "abandon":
            self.cache.abandon(step)
            return
        self.cache.commit(step, flat)
        for sid, tokens in new.items():
            self.tokens[sid] += tokens

    def release(self, *sids):
        self.cache.release(list(sids))
        for sid in sids:
            del self.tokens[sid]


@pytest.fixture(params=[1, 3, 4, 16])
def driver(request):
    with make(num_blocks=96 // request.param + 8, block_size=request.param) as cache:
        yield Driver(cache)
        cache.check()


def test_prefill_decode_and_mixed_batches(driver):
    a, _ = driver.admit([1, 2, 3, 4, 5])
    b, _ = driver.admit([6])
    driver.run({a: [7], b: [8, 9, 10]})
    driver.run({b: [11], a: [12]})


def test_prefix_hit_reads_what_the_first_prompt_wrote(driver):
    """W36, W23: hit and miss agree, and nothing is found before commit."""
    prompt = list(range(40, 57))
    size = driver.cache.spec.block_size
    first, cached = driver.admit(prompt)
    assert cached == 0
    driver.release(first)
    _, cached = driver.admit([*prompt, 3, 4])
    assert cached == len(prompt) // size * size


def test_forks_diverge_and_keep_their_prefix(driver):
    """W19: copy-on-write moves the bytes, for whoever writes first."""
    parent, _ = driver.admit([1, 2, 3, 4, 5, 6])
    kids = driver.cache.fork([parent], n=2)[0].tolist()
    for kid in kids:
        driver.tokens[kid] = list(driver.tokens[parent])
    driver.run({kids[0]: [70], parent: [71]})
    driver.run({kids[1]: [72], kids[0]: [73], parent: [74]})
    driver.release(parent)
    driver.run({kids[1]: [75], kids[0]: [76]})


def test_fork_at_any_position_and_truncate(driver):
    """R01, W27."""
    parent, _ = driver.admit(list(range(11)))
    for at in range(12):
        (kid,) = driver.cache.fork([parent], at=at)[0].tolist()
        driver.tokens[kid] = list(range(at))
        driver.run({kid: [90 + at], parent: []})
        driver.release(kid)
    driver.cache.truncate([parent], [6])
    driver.tokens[parent] = list(range(6))
    driver.run({parent: [50, 51, 52, 53, 54, 55, 56]})


def test_abandon_leaves_no_trace(driver):
    a, _ = driver.admit([1, 2, 3, 4, 5, 6])
    (b,) = driver.cache.fork([a])[0].tolist()
    driver.tokens[b] = list(driver.tokens[a])
    before = driver.cache.stats()
    driver.run({a: [7, 8, 9, 10, 11]}, close="abandon")
    assert replace(driver.cache.stats(), peak_used=before.peak_used) == before
    driver.run({a: [12], b: [13]})


def test_left_pads_are_never_visible(driver):
    cache = driver.cache
    sid, _ = driver.admit([1, 2, 3, 4], pads=[3])
    assert cache.sequence(sid).length == 4 and cache.sequence(sid).position == 7
    driver.run({sid: [5]})
    assert cache.match([[1, 2, 3, 4, 5, 6, 7, 8]])[0] == 0


@pytest.mark.parametrize("policy", [LRU, ARC, LFUDA, NeverHitFirst, S3FIFO, lambda: PriorityTTL([0, None])])
def test_eviction_under_pressure_never_serves_foreign_content(policy):
    """W01: recycled blocks are not found under their old content."""
    with make(num_blocks=6, block_size=2, policy=policy()) as cache:
        driver = Driver(cache)
        for turn in range(12):
            sid, _ = driver.admit([turn // 2 % 3 * 10 + i for i in range(7)])
            driver.run({sid: [100 + turn]})
            driver.release(sid)
            cache.check()
        assert cache.stats().evictions > 0 and cache.stats().hit_tokens > 0


def test_the_end_of_a_session_and_the_cap_of_pins_reach_the_table():
    with make(num_blocks=12, max_pinned=2) as cache:
        driver = Driver(cache)
        for token in (1, 2):
            driver.release(driver.admit([token] * 9, namespace="n")[0])
        with pytest.raises(ValueError, match="max_pinned is 2"):
            cache.pin([[1] * 8, [2] * 8], "both", namespace="n")
        assert cache.pin([[1] * 8], "one", namespace="n") == 2
        assert cache.demote([[2] * 9]) == 0 == cache.demote([[1] * 9], namespace="n")
        assert cache.demote([[2] * 9], namespace="n") == 2
        cache.check()


def test_out_of_blocks_changes_nothing_and_says_what_to_do():
    with make(num_blocks=4) as cache:
        a, b = cache.admit([[1] * 8, [2] * 8]).ids
        before = cache.stats()
        assert not cache.can_extend([a], 9)
        with pytest.raises(OutOfBlocks, match=r"needs 1 blocks, 0 of 4"):
            cache.extend([a], 9)
        assert isinstance(OutOfBlocks("x"), MemoryError) and cache.stats() == before
        cache.release([b])
        cache.abandon(cache.extend([a], 9))


def test_attend_only_reads_with_k_and_v_none(driver):
    sid, _ = driver.admit([1, 2, 3])
    step = driver.cache.extend([sid], 1)
    k, v = kv_of([9], 0)
    q = np.ones((1, Q_HEADS, DIM), np.float32)
    written = driver.cache.attend(0, q, k, v, step)
    np.testing.assert_array_equal(driver.cache.attend(0, q, None, None, step), written)
    with pytest.raises(ValueError, match="both k and v"):
        driver.cache.attend(0, q, k, None, step)
    driver.cache.abandon(step)


def test_a_closed_step_is_refused_by_attend(driver):
    sid, _ = driver.admit([1])
    step = driver.cache.extend([sid], 1)
    driver.cache.abandon(step)
    with pytest.raises(StepClosed):
        driver.cache.attend(0, np.ones((1, Q_HEADS, DIM), np.float32), *kv_of([1], 0), step)


def test_steps_from_arrays_read_the_same_storage(driver):
    sid, _ = driver.admit([1, 2, 3, 4, 5])
    cache = driver.cache
    step = Step.from_arrays(cache.sequence(sid).block_table[None], [5], [0, 1], block_size=cache.spec.block_size)
    q = np.random.default_rng(0).standard_normal((1, Q_HEADS, DIM)).astype(np.float32)
    expected, _ = reference_attention(q, *kv_of([1, 2, 3, 4, 5], 0))
    np.testing.assert_allclose(cache.attend(0, q, None, None, step), expected, atol=2e-6)


def test_attend_takes_no_foreign_step_and_writes_through_none_from_arrays():
    """Contracts 1 and 8: what is published in one cache is not written through another's slots."""
    with make() as one, make() as two:
        for cache in (one, two):
            Driver(cache).admit([1, 2, 3, 4, 5])
        stored = one.storage.view(0)[0].copy()
        q = np.ones((5, Q_HEADS, DIM), np.float32)
        (sid,) = two.admit([[7] * 5]).ids
        step = two.extend([sid], 5)
        with pytest.raises(ValueError, match="another cache"):
            one.attend(0, q, *kv_of([7] * 5, 0), step)
        with pytest.raises(ValueError, match="only read"):
            one.attend(0, q, *kv_of([7] * 5, 0), Step.from_arrays([[4, 5]], [5], [0, 5], block_size=4))
        with pytest.raises(TypeError, match="Step"):
            one.attend(0, q, None, None, None)
        np.testing.assert_array_equal(one.storage.view(0)[0], stored)
        two.abandon(two.open_steps[0])


def test_a_failed_copy_abandons_the_step_and_loses_no_diff():
    cache = make()
    driver = Driver(cache)
    parent, _ = driver.admit([1, 2, 3, 4, 5, 6])
    cache.fork([parent])
    device = {}

    def replay(step):
        device.update(((row, logical), block) for row, logical, block in step.diff.tolist())

    class Broken:
        def __getattr__(self, name):
            return getattr(get("numpy"), name)

        def copy_blocks(self, storage, pairs):
            raise MemoryError("no scratch memory")

    working, cache.backend = cache.backend, Broken()
    with pytest.raises(MemoryError, match="scratch"):
        cache.extend([parent], 5)
    assert cache.open_steps == ()
    cache.backend = working
    step = cache.extend([parent], 5)
    replay(step)
    row = int(parent) & 0xFFFFFFFF
    assert [device[row, j] for j in range(3)] == step.block_tables[0, :3].tolist()
    cache.abandon(step)


def test_metadata_only_moves_no_bytes():
    with make(storage="metadata") as cache:
        (a,) = cache.admit([[1, 2, 3, 4, 5]]).ids
        cache.commit(cache.extend([a], 5), [1, 2, 3, 4, 5])
        cache.fork([a])
        step = cache.extend([a], 1)
        assert len(step.copies) == 1 and cache.storage is None
        with pytest.raises(ValueError, match="metadata"):
            cache.attend(0, np.ones((1, Q_HEADS, DIM), np.float32), *kv_of([1], 0), step)
        cache.abandon(step)


def test_the_callers_buffers_are_the_pool():
    spec = CacheSpec(layers=LAYERS, kv_heads=KV_HEADS, head_dim=DIM, block_size=4)
    own = get("numpy").allocate(spec, 8).export(writable=True)
    buffers = [tuple(np.zeros_like(array) for array in plane) for plane in own]
    with make(num_blocks=8, storage=buffers) as cache:
        driver = Driver(cache)
        driver.admit([1, 2, 3])
        assert buffers[0][0].any() and buffers[1][1].any()
