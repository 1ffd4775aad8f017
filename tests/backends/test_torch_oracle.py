"""Backend "numpy" against torch's attention with an explicit mask, and with several BLAS threads."""

import numpy as np
import pytest

from pagedcache import backends
from pagedcache.spec import CacheSpec
from pagedcache.testing import make_scene

BACKEND = backends.get("numpy")
LENGTHS = [(1, 70), (33, 33), (9, 48), (1, 1), (130, 300)]


@pytest.mark.parametrize(("q_heads", "kv_heads", "head_dim"), [(9, 3, 64), (8, 1, 128), (4, 4, 80)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_equals_torch(dtype, q_heads, kv_heads, head_dim):
    torch = pytest.importorskip("torch")
    scene = make_scene(BACKEND, CacheSpec(1, kv_heads, head_dim, dtype=dtype), LENGTHS, q_heads)
    out, _ = scene.attend()
    begin = 0
    for (q_len, kv_len), q, k, v in zip(LENGTHS, scene.queries, scene.keys, scene.values, strict=True):
        mask = torch.arange(kv_len) <= torch.arange(kv_len - q_len, kv_len)[:, None]
        q, k, v = (torch.from_numpy(array).to(torch.float64).transpose(0, 1) for array in (q, k, v))
        k, v = (array.repeat_interleave(q_heads // kv_heads, dim=0) for array in (k, v))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1)
        np.testing.assert_allclose(out[begin : begin + q_len], expected.numpy(), rtol=0, atol=5e-6)
        begin += q_len


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "head_dim", "v_head_dim"),
    [(9, 3, 64, 64), (8, 1, 128, 128), (4, 4, 80, 80), (4, 2, 1, 1), (3, 1, 576, 512), (2, 2, 256, 1)],
)
def test_number_of_threads_does_not_matter(q_heads, kv_heads, head_dim, v_head_dim):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    spec = CacheSpec(1, kv_heads, head_dim, v_head_dim=v_head_dim)
    scene = make_scene(BACKEND, spec, [*LENGTHS, (1, 1000)], q_heads)
    bits = set()
    for threads in (1, 2, 3, 8):
        with threadpoolctl.threadpool_limits(threads):
            bits.add(b"".join(array.tobytes() for array in scene.attend()))
    assert len(bits) == 1
