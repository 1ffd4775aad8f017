"""Backend "cpu": the usual call, which stays in C, and every other way to the same result give the same bits."""

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache
from pagedcache.backends import HasThreads, get
from pagedcache.backends.cpu import CpuBackend, _native
from pagedcache.testing import make_scene

DTYPES = ["float32", "float16", "bfloat16", "int8", "float8_e4m3"]
Q_HEADS, KV_HEADS, DIM, V_DIM = 4, 2, 16, 24


@pytest.fixture(params=DTYPES)
def cache_and_step(request):
    """A cache of three layers and an open step: 3 tokens more of a sequence that has 5."""
    spec = CacheSpec(3, KV_HEADS, DIM, v_head_dim=V_DIM, dtype=request.param, block_size=4)
    with KVCache(spec, num_blocks=8, backend=CpuBackend(threads=1)) as cache:
        ids = cache.admit([[1] * 5]).ids
        step = cache.extend(ids, 5)
        for layer in range(3):
            cache.attend(layer, *inputs(5), step)
        cache.commit(step, [1] * 5)
        yield cache, cache.extend(ids, 3)
        cache.check()


def inputs(tokens, seed=0):
    rng = np.random.default_rng(seed)
    heads = ((Q_HEADS, DIM), (KV_HEADS, DIM), (KV_HEADS, V_DIM))
    return [rng.standard_normal((tokens, *shape), np.float32) for shape in heads]


@pytest.fixture
def usual(monkeypatch):
    """Whether each call from here on was a usual one; those before the fixture do not count."""
    seen, original = [], _native.usual_attend

    def watched(*arguments):
        done = original(*arguments)
        seen.append(done is not None)
        return done

    monkeypatch.setattr(_native, "usual_attend", watched)
    return seen


def strided(array):
    """The same numbers, but not as C reads them."""
    return np.repeat(array, 2, axis=0)[::2]


@pytest.mark.parametrize("how", ["float32", "float16", "bfloat16", "out", "out and lse", "scale"])
def test_the_usual_call_gives_the_bits_of_the_long_way(cache_and_step, usual, how):
    cache, step = cache_and_step
    q, k, v = inputs(3, seed=1)
    if how == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    else:
        dtype = np.float16 if how == "float16" else np.float32
    q, k, v = (array.astype(dtype) for array in (q, k, v))
    options = {"scale": 0.3} if how == "scale" else {}
    shape, lse = (3, Q_HEADS, V_DIM), np.empty((3, Q_HEADS), np.float32)
    given = {"out": np.empty(shape, dtype)} if "out" in how else {}
    given |= {"lse": np.empty(shape[:2], np.float32)} if "lse" in how else {}

    cache.attend(0, q, k, v, step)  # leaves the plan
    expected = cache.attend(1, *map(strided, (q, k, v)), step, lse=lse, **options)
    assert usual == [False, False]
    out = cache.attend(2, q, k, v, step, **options, **given)
    read = cache.attend(2, q, None, None, step, **options)
    assert usual[2:] == [how != "bfloat16" or cache.spec.dtype == "bfloat16"] * 2

    assert out.dtype == dtype and out.tobytes() == read.tobytes() == expected.tobytes()
    assert given.get("out", out) is out and given.get("lse", lse).tobytes() == lse.tobytes()
    records = cache.backend.read_blocks(cache.storage, np.arange(1, 9), [1, 2])
    np.testing.assert_array_equal(records[:, 0], records[:, 1])


UNUSUAL = {
    "layer": ({"layer": 3}, ValueError),
    "q heads": ({"q": np.ones((3, 3, DIM), np.float32)}, ValueError),
    "q dtype": ({"q": np.ones((3, Q_HEADS, DIM))}, TypeError),
    "tokens": ({"q": np.ones((2, Q_HEADS, DIM), np.float32)}, ValueError),
    "k head size": ({"k": np.ones((3, KV_HEADS, V_DIM), np.float32)}, ValueError),
    "k tokens": ({"k": np.ones((4, KV_HEADS, DIM), np.float32)}, ValueError),
    "v of other heads": ({"v": np.ones((3, Q_HEADS, V_DIM), np.float32)}, ValueError),
    "v dtype": ({"v": np.ones((3, KV_HEADS, V_DIM), np.int32)}, TypeError),
    "scale": ({"scale": float("inf")}, ValueError),
    "scale is no number": ({"scale": "much"}, ValueError),
    "out shape": ({"out": np.ones((3, Q_HEADS, DIM), np.float32)}, ValueError),
    "out dtype": ({"out": np.ones((3, Q_HEADS, V_DIM))}, ValueError),
    "out read-only": ({"out": np.broadcast_to(np.float32(1), (3, Q_HEADS, V_DIM))}, ValueError),
    "lse shape": ({"lse": np.ones((3, KV_HEADS), np.float32)}, ValueError),
    "lse dtype": ({"lse": np.ones((3, Q_HEADS))}, ValueError),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_what_is_wrong_is_refused_after_a_plan_was_left_too(cache_and_step, case):
    cache, step = cache_and_step
    wrong, error = UNUSUAL[case]
    q, k, v = inputs(3)
    cache.attend(0, q, k, v, step)
    before = cache.backend.read_blocks(cache.storage, np.arange(1, 9))
    with pytest.raises(error):
        cache.attend(**{"layer": 1, "q": q, "k": k, "v": v, "step": step} | wrong)
    np.testing.assert_array_equal(cache.backend.read_blocks(cache.storage, np.arange(1, 9)), before)


@pytest.mark.parametrize("which", [1, 2])
def test_the_usual_call_stores_nothing_that_no_scale_fits(cache_and_step, which):
    cache, step = cache_and_step
    arrays = inputs(3)
    cache.attend(0, *arrays, step)
    before = cache.backend.read_blocks(cache.storage, np.arange(1, 9), [1])
    arrays[which][2, 1, 3] = np.inf
    if cache.spec.has_scales:
        with pytest.raises(ValueError, match=f"{'kv'[which - 1]} holds nan or inf"):
            cache.attend(1, *arrays, step)
        np.testing.assert_array_equal(cache.backend.read_blocks(cache.storage, np.arange(1, 9), [1]), before)
    else:
        cache.attend(1, *arrays, step)


def test_out_may_be_the_memory_of_q(cache_and_step):
    cache, step = cache_and_step
    q, k, v = inputs(3)
    both = np.empty((3, Q_HEADS, V_DIM + DIM), np.float32)
    memory = np.empty(3 * Q_HEADS * V_DIM, np.float32)
    expected = cache.attend(0, q, k, v, step)
    q_there, out = memory[: q.size].reshape(q.shape), memory.reshape(3, Q_HEADS, V_DIM)
    q_there[...] = q
    assert cache.attend(0, q_there, None, None, step, out=out).tobytes() == expected.tobytes()
    strided_out = both[..., DIM:]
    cache.attend(0, q, None, None, step, out=strided_out)
    np.testing.assert_array_equal(strided_out, expected)


def test_a_plan_serves_only_what_it_was_made_for():
    """Steps from arrays that two pools of other sizes read: the memo is the step's."""
    backend = CpuBackend(threads=1)
    small, large = (
        make_scene(backend, CacheSpec(1, KV_HEADS, DIM, block_size=4), [(1, n), (2, n)], Q_HEADS) for n in (5, 60)
    )
    step = large.step()
    expected = backend.attend(large.storage, 0, large.q(), step)
    with pytest.raises(ValueError, match="block_tables"):
        backend.attend(small.storage, 0, large.q(), step)
    wider = np.repeat(large.q(), 2, axis=1)
    assert backend.attend(large.storage, 0, wider, step).shape[1] == 2 * Q_HEADS
    windowed = backend.attend(large.storage, 0, large.q(), step, window=3)
    assert not np.array_equal(windowed, expected)
    assert backend.attend(large.storage, 0, large.q(), step).tobytes() == expected.tobytes()


def test_check_attend_and_write_and_attend_are_there():
    backend = get("cpu")
    assert callable(backend.check_attend) and callable(backend.write_and_attend)
    assert isinstance(backend, HasThreads) and not isinstance(get("numpy"), HasThreads)
