"""Backend "numpy" against torch's attention with an explicit mask, and with several BLAS threads."""

import numpy as np
import pytest

from pagedcache import backends
from pagedcache.spec import CacheSpec
from pagedcache.testing import make_scene

BACKEND = backends.get("numpy")
LENGTHS = [(1, 70), (33, 33), (9, 48), (1, 1), (130, 300)]
DTYPES = ["float32", "float16", "bfloat16", "int8", "float8_e4m3"]


def by_torch(torch, q, k, v, bias):
    """Attention of one sequence, [q_len, q_heads, ...], with a mask or bias [q_heads or 1, q_len, kv_len]."""
    q, k, v = (torch.from_numpy(array).to(torch.float64).transpose(0, 1) for array in (q, k, v))
    k, v = (array.repeat_interleave(len(q) // len(k), dim=0) for array in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(0, 1).numpy()


def sequences(scene):
    """(slice of the step's tokens, q_len, kv_len, q, k, v) of each."""
    begin = 0
    for (q_len, kv_len), *arrays in zip(scene.lengths, scene.queries, scene.keys, scene.values, strict=True):
        yield slice(begin, begin + q_len), q_len, kv_len, *arrays
        begin += q_len


@pytest.mark.parametrize(("q_heads", "kv_heads", "head_dim"), [(9, 3, 64), (8, 1, 128), (4, 4, 80)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_torch(dtype, q_heads, kv_heads, head_dim):
    torch = pytest.importorskip("torch")
    scene = make_scene(BACKEND, CacheSpec(1, kv_heads, head_dim, dtype=dtype), LENGTHS, q_heads)
    out, _ = scene.attend()
    for mine, q_len, kv_len, q, k, v in sequences(scene):
        mask = torch.arange(kv_len) <= torch.arange(kv_len - q_len, kv_len)[:, None]
        np.testing.assert_allclose(out[mine], by_torch(torch, q, k, v, mask[None]), rtol=0, atol=5e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (16, 0), (16, 4), (1000, 4)])
def test_windows_and_sinks_equal_torch(dtype, window, sinks):
    torch = pytest.importorskip("torch")
    scene = make_scene(BACKEND, CacheSpec(1, 3, 64, dtype=dtype), LENGTHS, q_heads=6)
    out, _ = scene.attend(window=window, sink_tokens=sinks)
    for mine, q_len, kv_len, q, k, v in sequences(scene):
        key, place = torch.arange(kv_len), torch.arange(kv_len - q_len, kv_len)[:, None]
        mask = (key <= place) & ((key > place - window) | (key < sinks))
        np.testing.assert_allclose(out[mine], by_torch(torch, q, k, v, mask[None]), rtol=0, atol=5e-6)


def test_slopes_equal_torch():
    torch = pytest.importorskip("torch")
    scene = make_scene(BACKEND, CacheSpec(1, 3, 64), LENGTHS, q_heads=6)
    slopes = 2.0 ** -np.arange(1, 7, dtype=np.float32)
    out, _ = scene.attend(alibi_slopes=slopes)
    for mine, q_len, kv_len, q, k, v in sequences(scene):
        key, place = torch.arange(kv_len), torch.arange(kv_len - q_len, kv_len)[:, None]
        bias = torch.from_numpy(slopes)[:, None, None].double() * (key - place)
        bias = bias.masked_fill(key > place, -torch.inf)
        np.testing.assert_allclose(out[mine], by_torch(torch, q, k, v, bias), rtol=0, atol=5e-6)


def test_sink_logits_equal_a_further_key_in_torch():
    torch = pytest.importorskip("torch")
    scene = make_scene(BACKEND, CacheSpec(1, 3, 64), LENGTHS, q_heads=6)
    logits = np.linspace(-2, 6, 6, dtype=np.float32)
    out, _ = scene.attend(sink_logits=logits)
    for mine, q_len, kv_len, q, k, v in sequences(scene):
        mask = torch.arange(kv_len) <= torch.arange(kv_len - q_len, kv_len)[:, None]
        bias = torch.zeros(6, q_len, kv_len + 1, dtype=torch.float64)
        bias[:, :, :kv_len].masked_fill_(~mask, -torch.inf)
        bias[:, :, kv_len] = torch.from_numpy(logits)[:, None]
        k, v = (np.concatenate([array, np.zeros_like(array[:1])]) for array in (k, v))
        np.testing.assert_allclose(out[mine], by_torch(torch, q, k, v, bias), rtol=0, atol=5e-6)


def test_trees_equal_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    scene = make_scene(BACKEND, CacheSpec(1, 3, 64), LENGTHS, q_heads=6)
    scene.masks = [np.eye(q_len, dtype=bool) | (rng.random((q_len, q_len)) < 0.3) for q_len, _ in LENGTHS]
    out, _ = scene.attend()
    for (mine, q_len, kv_len, q, k, v), tree in zip(sequences(scene), scene.masks, strict=True):
        mask = torch.ones(q_len, kv_len, dtype=torch.bool)
        mask[:, kv_len - q_len :] = torch.from_numpy(tree)
        np.testing.assert_allclose(out[mine], by_torch(torch, q, k, v, mask[None]), rtol=0, atol=5e-6)


def test_a_cap_equals_torch():
    torch = pytest.importorskip("torch")
    scene = make_scene(BACKEND, CacheSpec(1, 3, 64), LENGTHS, q_heads=6, q_scale=4.0)
    out, lse = scene.attend(softcap=3.0)
    for mine, q_len, kv_len, q, k, v in sequences(scene):
        q, k, v = (torch.from_numpy(array).double().transpose(0, 1) for array in (q, k, v))
        k, v = (array.repeat_interleave(2, dim=0) for array in (k, v))
        scores = 3 * torch.tanh(q @ k.transpose(1, 2) / 8 / 3)
        mask = torch.arange(kv_len) <= torch.arange(kv_len - q_len, kv_len)[:, None]
        scores = scores.masked_fill(~mask, -torch.inf)
        expected = (torch.softmax(scores, -1) @ v).transpose(0, 1)
        np.testing.assert_allclose(out[mine], expected.numpy(), rtol=0, atol=5e-6)
        np.testing.assert_allclose(lse[mine], torch.logsumexp(scores, -1).T.numpy(), rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "head_dim", "v_head_dim"),
    [(9, 3, 64, 64), (8, 1, 128, 128), (4, 4, 80, 80), (4, 2, 1, 1), (3, 1, 576, 512), (2, 2, 256, 1)],
)
@pytest.mark.parametrize("options", [{}, {"window": 100, "softcap": 5.0}])
def test_number_of_threads_does_not_matter(q_heads, kv_heads, head_dim, v_head_dim, options):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    spec = CacheSpec(1, kv_heads, head_dim, v_head_dim=v_head_dim)
    scene = make_scene(BACKEND, spec, [*LENGTHS, (1, 1000)], q_heads)
    if options:
        options = options | {"alibi_slopes": np.linspace(0, 1, q_heads, dtype=np.float32)}
    bits = set()
    for threads in (1, 2, 3, 8):
        with threadpoolctl.threadpool_limits(threads):
            bits.add(b"".join(array.tobytes() for array in scene.attend(**options)))
    assert len(bits) == 1
