"""Other libraries' arrays as what a cache is given, and as where it puts results."""

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache
from pagedcache.exchange import as_numpy, export

TOKENS, HEADS, KV_HEADS, DIM = 5, 4, 2, 16
DTYPES = ["float32", "float16", "bfloat16"]


@pytest.fixture(params=["cpu", "numpy"])
def cache(request):
    with KVCache(CacheSpec(2, KV_HEADS, DIM, block_size=4), num_blocks=8, backend=request.param) as cache:
        yield cache


@pytest.fixture
def step(cache):
    (sid,) = cache.admit([[1] * TOKENS]).ids
    step = cache.extend([sid], TOKENS)
    yield step
    if not step.closed:
        cache.abandon(step)


@pytest.fixture
def given(aligned):
    """A function that returns q, k and v of random numbers, as `Exported`."""

    def make(dtype):
        rng = np.random.default_rng(0)
        shared = [aligned((TOKENS, heads, DIM), dtype) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        for each in shared:
            bits = rng.standard_normal(each.shape, np.float32).view(np.uint32) & 0xFFFF0000  # exact in bfloat16
            numbers = bits.view(np.float32)
            each.array[...] = bits >> 16 if each.array.dtype == np.uint16 else numbers.astype(each.array.dtype)
        return shared

    return make


def stored(cache, layer):
    return [array[1:].tobytes() for array in cache.storage.view(layer)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_is_that_of_the_same_numbers_in_numpy(cache, step, given, foreign, dtype):
    shared = given(dtype)
    out = cache.attend(0, *(foreign(each) for each in shared), step)
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")  # without it uint16 would not be taken for bfloat16
    expected = cache.attend(1, *(as_numpy(each) for each in shared), step)
    assert type(out) is np.ndarray and out.dtype == expected.dtype
    np.testing.assert_array_equal(out, expected)
    assert stored(cache, 0) == stored(cache, 1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_results_are_written_into_arrays_of_other_libraries(cache, step, given, aligned, writable_foreign, dtype):
    q, k, v = (each.array for each in given(dtype))
    expected = cache.attend(0, q, k, v, step)
    place = aligned(q.shape, dtype)
    out, lse = writable_foreign(place), writable_foreign(aligned(q.shape[:2], "float32"))
    assert cache.attend(0, q, k, v, step, out=out, lse=lse) is out
    np.testing.assert_array_equal(place.array, expected)
    assert as_numpy(lse).any()
    place.array[...] = 0
    assert cache.attend(0, q, None, None, step, out=out) is out
    np.testing.assert_array_equal(place.array, expected)


def test_results_in_bfloat16_of_torch(cache, step, given):
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    q, k, v = (torch.from_dlpack(each) for each in given("bfloat16"))
    out = torch.empty_like(q).mT.contiguous().mT  # with strides
    assert cache.attend(0, q, k, v, step, out=out) is out
    expected = cache.attend(0, as_numpy(q), as_numpy(k), as_numpy(v), step)
    np.testing.assert_array_equal(as_numpy(out).view(np.uint16), expected.view(np.uint16))


def test_results_are_not_written_into_what_may_not_be(cache, step, given, aligned):
    jax = pytest.importorskip("jax")
    q, k, v = (each.array for each in given("float32"))
    before = stored(cache, 0)
    for out in (jax.dlpack.from_dlpack(aligned(q.shape, "float32")), export(np.zeros_like(q), writable=False)):
        with pytest.raises(ValueError, match=r"out is float32 .*read-only"):
            cache.attend(0, q, k, v, step, out=out)
    assert stored(cache, 0) == before


class Elsewhere:
    """An array on a GPU."""

    dtype = np.dtype(np.float32)

    def __dlpack_device__(self):
        return 2, 0


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "sink_logits", "lse", "mask"])
def test_i12_arrays_on_a_gpu_are_refused_by_name(cache, step, given, name):
    arguments = dict(zip("qkv", (each.array for each in given("float32")), strict=True), mask_indptr=None)
    if name == "mask":
        arguments["mask_indptr"] = [0, 4]
    before = stored(cache, 0)
    with pytest.raises(TypeError, match=rf"{name} is Elsewhere on a CUDA GPU 0"):
        cache.attend(0, step=step, **arguments | {name: Elsewhere()})
    assert stored(cache, 0) == before


@pytest.mark.parametrize("name", ["q", "k", "v", "alibi_slopes"])
def test_i12_tensors_that_require_a_gradient_are_refused_by_name(cache, step, given, name):
    torch = pytest.importorskip("torch")
    arguments = dict(zip("qkv", (each.array for each in given("float32")), strict=True))
    before = stored(cache, 0)
    with pytest.raises(TypeError, match=rf"{name} is Tensor that requires a gradient: give {name}.detach"):
        cache.attend(0, step=step, **arguments | {name: torch.ones(HEADS, requires_grad=True)})
    assert stored(cache, 0) == before


def test_i12_nothing_is_appended_of_an_array_of_no_tokens(cache, foreign, aligned):
    before, none = stored(cache, 0), foreign(aligned((0, KV_HEADS, DIM), "float32"))
    cache.backend.write(cache.storage, 0, none, none, [])
    assert stored(cache, 0) == before


def test_i04_arrays_that_may_not_be_written_are_read(cache, step, given, tmp_path):
    q, k, _ = (each.array for each in given("float32"))
    expected = cache.attend(0, q, k, k, step)
    np.save(tmp_path / "k.npy", k)
    locked = np.frombuffer(k.tobytes(), np.float32).reshape(k.shape)
    for same in (locked, np.load(tmp_path / "k.npy", mmap_mode="r"), export(k, writable=False)):
        np.testing.assert_array_equal(cache.attend(0, q, same, same, step), expected)
    one = np.broadcast_to(k[:1], k.shape)
    np.testing.assert_array_equal(cache.attend(0, q, one, one, step), cache.attend(0, q, one.copy(), one.copy(), step))


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_i07_tokens_and_slots_may_be_arrays_of_other_libraries(cache, name):
    library = pytest.importorskip({"torch": "torch", "jax": "jax.numpy"}[name])
    (sid,) = cache.admit([library.asarray([1, 2, 3])]).ids
    step = cache.extend([sid], library.asarray([3]))
    cache.commit(step, library.asarray([1, 2, 3]))
    ones = library.ones((2, KV_HEADS, DIM))
    cache.backend.write(cache.storage, 0, ones, ones, library.asarray([4, 5]))
    assert cache.storage.view(0)[0][1, :, 0, 0].tolist() == [1, 1, 0, 0]


def test_variants_of_other_libraries(cache, step, given, foreign, aligned):
    q, k, v = (each.array for each in given("float32"))
    slopes = aligned((HEADS,), "float32")
    slopes.array[...] = 0.5
    mask = aligned((4,), "uint8")
    mask.array[...] = 255
    expected = cache.attend(0, q, k, v, step, alibi_slopes=slopes.array, mask=mask.array, mask_indptr=[0, 4])
    same = {"alibi_slopes": foreign(slopes), "mask": foreign(mask), "mask_indptr": [0, 4]}
    np.testing.assert_array_equal(cache.attend(0, q, k, v, step, **same), expected)


def test_parts_of_other_libraries_are_merged(cache, foreign, aligned):
    outs, lses = aligned((2, TOKENS, HEADS, DIM), "float32"), aligned((2, TOKENS, HEADS), "float32")
    outs.array[0] = 2
    out, _ = cache.backend.merge(foreign(outs), foreign(lses))
    np.testing.assert_array_equal(out, np.ones_like(out))


def test_arrays_of_numpy_are_not_asked_for_anything(step, cache, given, monkeypatch):
    q, k, v = (each.array for each in given("float32"))
    out = cache.attend(0, q, k, v, step)
    if cache.backend.name == "cpu":
        monkeypatch.setattr("pagedcache.backends.cpu._backend.as_floats", None)
        monkeypatch.setattr("pagedcache.backends.cpu._backend.as_output", None)
    assert cache.attend(0, q, k, v, step, out=out) is out
