"""Tensors of torch on the CPU: into attend as they are, out of it and out of the pool without a copy."""

import gc

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache, ViewsOutstanding
from pagedcache.exchange import export

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def open_step(dtype):
    cache = KVCache(CacheSpec(layers=1, kv_heads=2, head_dim=16, block_size=4, dtype=dtype), num_blocks=8)
    return cache, cache.extend(cache.admit([range(5)]).ids, 5)


def tensors(dtype):
    source = torch.Generator().manual_seed(0)
    return [torch.randn(5, heads, 16, generator=source).to(DTYPES[dtype]) for heads in (4, 2, 2)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_tensors_is_torchs(dtype):
    cache, step = open_step(dtype)
    q, k, v = tensors(dtype)
    out = torch.from_dlpack(export(cache.attend(0, q, k, v, step, precision="exact")))
    heads = (array.float().transpose(0, 1) for array in (q, *(x.repeat_interleave(2, 1) for x in (k, v))))
    expected = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(0, 1)
    assert out.dtype == DTYPES[dtype]
    torch.testing.assert_close(out.float(), expected, atol=2e-2 if dtype == "bfloat16" else 2e-3, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_over_the_pool(dtype):
    cache, step = open_step(dtype)
    q, k, v = tensors(dtype)
    cache.attend(0, q, k, v, step)
    pool = torch.from_dlpack(export(cache.storage.view(0)[0], dtype))
    assert pool.data_ptr() == cache.storage.view(0)[0].ctypes.data and pool.dtype == DTYPES[dtype]
    assert torch.equal(pool.flatten(0, 1)[torch.from_numpy(step.slots.copy())], k)
    with pytest.raises(ViewsOutstanding):
        cache.close()
    del pool
    gc.collect()
    cache.close()


def test_out_is_a_tensors_memory():
    cache, step = open_step("float32")
    out = torch.zeros(5, 4, 16)
    cache.attend(0, *tensors("float32"), step, out=out.numpy())
    assert np.isfinite(out.numpy()).all() and out.any()
