"""Layer groups asked for what they cannot do, and groups of odd sizes: a clear error, or right results."""

import numpy as np
import pytest
from hybrid_drive import CHUNKED, FULL, MIXED, SINKS, SLIDING, Rows, make_cache, tree_of

from pagedcache import CacheSpec, KVCache, OutOfBlocks, Step
from pagedcache.core import AdmitStatus
from pagedcache.spec import LayerGroup
from pagedcache.testing import packed_masks

PROMPT = [11 * k % 200 for k in range(40)]


def sliding(window, sink_tokens=0):
    return LayerGroup(1, kind="sliding_window", window=window, sink_tokens=sink_tokens)


@pytest.mark.parametrize("groups", [(SLIDING,), (SLIDING, FULL), (CHUNKED, FULL)], ids=str)
def test_first_group_is_full(groups):
    with pytest.raises(NotImplementedError, match="needs a full one there"):
        make_cache(groups=groups)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (LayerGroup(1, sink_tokens=2), "sink_tokens=2 in a group of kind 'full'"),
        (LayerGroup(1, kind="chunked_local", window=4, sink_tokens=2), "only sliding windows keep any"),
        (LayerGroup(1, window=4), "window=4 in a group of kind 'full'"),
        (LayerGroup(1, kind="sliding_window"), "window=None"),
        (sliding(0), "window"),
        (sliding(4, -1), "sink_tokens"),
    ],
    ids=str,
)
def test_groups_that_cannot_be(group, message):
    with pytest.raises(ValueError, match=message):
        make_cache(groups=(FULL, group))


def test_windows_need_max_step_tokens():
    with pytest.raises(ValueError, match="max_step_tokens"):
        make_cache(groups=(FULL, SLIDING), max_step_tokens=None)


def test_more_tokens_than_a_step_may_have():
    with make_cache() as cache:
        rows = Rows(cache)
        sid = rows.admit(PROMPT[:9])
        before = cache.stats()
        for verb in (cache.extend, cache.can_extend):
            with pytest.raises(ValueError, match="counts holds 9 at 0; max_step_tokens is 8"):
                verb([sid], [9])
        assert cache.stats() == before
        rows.run({sid: [1] * 8})


def test_step_from_arrays_reads_the_first_group_only():
    with make_cache() as cache:
        rows = Rows(cache)
        sid = rows.admit(PROMPT[:9])
        step = Step.from_arrays([cache.sequence(sid).block_table], [9], [0, 1], block_size=4)
        q = np.ones((1, 2, 8), np.float32)
        assert cache.attend(0, q, None, None, step).any()
        for layer in range(1, cache.spec.layers):
            with pytest.raises(ValueError, match="tables of one layer group"):
                cache.attend(layer, q, None, None, step)


def test_mask_over_two_chunks():
    """A mask has the new tokens of a sequence beside each other, and chunks part them."""
    with make_cache(groups=(FULL, CHUNKED)) as cache:
        rows = Rows(cache)
        sid = rows.admit(PROMPT[: CHUNKED.window - 1])
        step = cache.extend([sid], [3])
        q, kv, causal = np.ones((3, 2, 8), np.float32), np.ones((3, 1, 8), np.float32), np.tri(3, dtype=bool)
        with pytest.raises(ValueError, match="reach into another chunk"):
            cache.attend(1, q, kv, kv, step, **packed_masks([causal]))
        cache.abandon(step)
        step = cache.extend([sid], [1])  # all in one chunk: nothing is cut
        assert cache.attend(1, q[:1], kv[:1], kv[:1], step, **packed_masks([causal[:1, :1]])).all()


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_tree_in_chunks(backend):
    """Refused, with nothing stored; the step can be abandoned, and the sequence goes on."""
    with make_cache(groups=(FULL, CHUNKED), backend=backend) as cache:
        rows = Rows(cache)
        sid = rows.admit(PROMPT[:9])
        depths, mask = tree_of([-1, -1, 0])
        step = cache.extend([sid], [3], depths=depths)
        before = [array.copy() for array in cache.storage.view(1)]
        with pytest.raises(ValueError, match="cannot be cut into chunks"):
            rows.compute(1, step, [1, 2, 3], **packed_masks([mask]))
        for array, former in zip(cache.storage.view(1), before, strict=True):
            np.testing.assert_array_equal(array, former)
        del array
        cache.abandon(step)
        rows.run({sid: [1, 2, 3]})


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize(
    "groups",
    [
        (FULL, sliding(1)),
        (FULL, sliding(1, 1)),
        (FULL, sliding(3), sliding(100, 5)),
        (FULL, sliding(2**31 - 2048)),
        (FULL, LayerGroup(1, kind="chunked_local", window=1)),
        (FULL, LayerGroup(1, kind="chunked_local", window=3), LayerGroup(1, kind="chunked_local", window=400)),
        (FULL, FULL, sliding(5), sliding(6), sliding(7, 2), CHUNKED, FULL, sliding(4, 40)),
    ],
    ids=lambda groups: " ".join(f"{group.window}" for group in groups),
)
@pytest.mark.parametrize("max_step_tokens", [1, 13])
def test_odd_sizes(backend, groups, max_step_tokens):
    """Windows of 1, of no whole blocks, shorter than a step, longer than max_length; eight groups."""
    with make_cache(300, groups=groups, backend=backend, max_step_tokens=max_step_tokens, max_length=60) as cache:
        rows = Rows(cache)
        a = rows.admit(PROMPT[:21])
        b = rows.fork(a)
        rows.run({b: [1], a: [2] * max_step_tokens})
        c = rows.admit(PROMPT[:18])
        rows.run({c: [3], a: [], b: [4] * max_step_tokens})
        rows.run({a: [], b: [], c: []})
        rows.release(a, b, c)
        cache.check()


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("pad", [1, 3, 4, 9])
def test_pads(backend, pad):
    """Sinks and chunks are counted from the pad."""
    with make_cache(backend=backend) as cache:
        rows = Rows(cache)
        sid = rows.admit(PROMPT[:25], pad=pad)
        other = rows.admit(PROMPT[:11])
        kid = rows.fork(sid)
        rows.run({sid: [1, 2], other: [3], kid: [4] * 8})
        rows.reorder([sid, other], [1, 0])
        rows.run({sid: [1] * 8, other: [2] * 7})
        cache.swap_out([other])
        rows.overwrite()
        cache.swap_in([other])
        rows.run({other: [5]})
        cache.check()
        rows.release(sid, other, kid)


@pytest.mark.parametrize("length", range(1, 30))
@pytest.mark.parametrize("num_blocks", [12, 22, 30, 38])
def test_pools_too_small_for_a_hit_and_its_promise(num_blocks, length):
    """A prompt that fits alone is never kept waiting by what is found of it."""
    with make_cache(num_blocks, groups=(FULL, SINKS, SLIDING), max_step_tokens=4) as cache:
        rows = Rows(cache)
        for known in (PROMPT[:length], PROMPT[:length], [*PROMPT[:length], 255, 254]):
            fits = cache.spec.blocks_per_sequence(len(known)) <= num_blocks
            [status] = cache.admit([known]).status if not fits else [AdmitStatus.ADMITTED]
            assert status == (AdmitStatus.ADMITTED if fits else AdmitStatus.NEVER_FITS)
            if fits:
                rows.release(rows.admit(known))
            cache.check()
            assert cache.pool.num_free == num_blocks


def test_a_view_of_a_later_group_is_no_step():
    with make_cache(groups=(FULL, SLIDING)) as cache:
        rows = Rows(cache)
        sid = rows.admit(PROMPT[:9])
        step = cache.extend([sid], [1])
        for verb in (lambda: cache.commit(step.groups[1], [1]), lambda: cache.abandon(step.groups[1])):
            with pytest.raises(ValueError, match="another"):
                verb()
        cache.abandon(step)


def test_out_of_blocks_changes_nothing_in_any_group():
    with make_cache(40, groups=MIXED) as cache:
        rows = Rows(cache)
        sid = rows.admit(PROMPT[:9])
        while cache.can_extend([sid], [8]):
            rows.run({sid: [1] * 8})
        before = cache.stats()
        with pytest.raises(OutOfBlocks):
            cache.extend([sid], [8])
        assert cache.stats() == before
        cache.check()


def test_steps_without_windows_have_no_bound():
    """max_step_tokens counts where a window is."""
    spec = CacheSpec(2, 1, 8, block_size=4, groups=[FULL, FULL], max_step_tokens=2)
    with KVCache(spec, num_blocks=20) as cache:
        [sid] = cache.admit([PROMPT[:9]]).ids
        cache.commit(cache.extend([sid], [9]), PROMPT[:9])
