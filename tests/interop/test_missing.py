"""Adapters can be imported without their framework; who uses one is told what to install."""

import sys

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache, LayerGroup
from pagedcache.interop import jax, onnxruntime

pytestmark = pytest.mark.thread_unsafe  # modules are put in the place of others
SPEC = CacheSpec(layers=1, kv_heads=2, head_dim=8, block_size=4)


def test_without_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"pip install 'pagedcache\[jax\]'"):
        jax.make_pools(SPEC, 4)
    with pytest.raises(ImportError, match=r"pip install 'pagedcache\[jax\]'"):
        jax.attend(None, None, None, None, None, None)


def test_without_onnxruntime(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'pagedcache\[onnxruntime\]'"):
        onnxruntime.ort_value(np.zeros(3, np.float32))


def test_arrays_of_a_step_need_no_jax(monkeypatch):
    """Each token's place, and rows that only fill up behind them."""
    monkeypatch.setitem(sys.modules, "jax", None)
    cache = KVCache(SPEC, num_blocks=8, storage="metadata")
    step = cache.extend(cache.admit([range(5), range(20, 22)]).ids, [5, 2])
    arrays = jax.step_arrays(step, tokens=9, sequences=3, width=4)
    assert arrays.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 0]
    assert arrays.token_seq[:7].tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert arrays.qo_indptr.tolist() == [0, 5, 7, 7] and arrays.kv_lens.tolist() == [5, 2, 0]
    assert arrays.slots[:7].tolist() == step.slots.tolist() and arrays.slots[7:].min() >= 9 * 4
    assert arrays.block_tables.shape == (3, 4) and arrays.block_tables.min() == 0
    assert arrays.last.tolist() == [4, 6, 0] and arrays.copies.shape == (0, 2)
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


def test_a_window_groups_arrays():
    """The second group's tables: what is behind the window is not there, and is said to be gone."""
    groups = [LayerGroup(1), LayerGroup(1, "sliding_window", window=4)]
    spec = CacheSpec(2, 2, 8, block_size=4, groups=groups, max_step_tokens=16)
    cache = KVCache(spec, num_blocks=32, storage="metadata")
    ids = cache.admit([range(16)]).ids
    cache.commit(cache.extend(ids, 16), range(16))
    step = cache.extend(ids, 1)
    arrays = jax.step_arrays(step, group=1)
    assert arrays.kv_starts[0] == step.groups[1].kv_starts[0] > 0
    assert arrays.slots[0] == step.groups[1].slots[0]
    with pytest.raises(ValueError, match="blocks behind a window were given back"):
        onnxruntime.paged_attention_inputs(step, 1)
