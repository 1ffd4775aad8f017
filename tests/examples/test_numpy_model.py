"""The example in NumPy says what it says, and its comparison with a dense model can fail."""

import importlib.util

import pytest

from pagedcache import CacheSpec, KVCache


@pytest.fixture
def example(checkout):
    spec = importlib.util.spec_from_file_location("numpy_model", checkout / "docs" / "examples" / "numpy_model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_paged_equals_dense_and_the_shared_beginning_is_found(example, capsys):
    example.main()
    assert "24 of them found in the prefix cache" in capsys.readouterr().out


def test_a_token_that_is_missing_is_noticed(example):
    text = [5, 17, 80, 33, 2]
    with KVCache(CacheSpec(example.LAYERS, example.KV_HEADS, example.DIM, block_size=4), num_blocks=8) as cache:
        rows = example.paged_logits(cache, cache.admit([text[1:]]).ids, [text[1:]])
        example.check(rows, [text[1:]])
        with pytest.raises(AssertionError, match="differ"):
            example.check(rows, [text])
