"""The llama arithmetic equals a plain float64 one, and what it does not compute is refused."""

import numpy as np
import pytest
import tiny_llama
from dense_llama import reference_logits

from pagedcache import KVCache
from pagedcache.errors import UnsupportedModel
from pagedcache.serving.models import GGUFFile, LlamaConfig, LlamaModel, load_model

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

VARIANTS = {
    "plain": {},
    "biases": {"biases": True},
    "untied head": {"tied": False},
    "rope factors": {"rope_factors": True},
}


def load(path):
    with GGUFFile(path) as file:
        return LlamaModel.from_gguf(file)


def cache_for(model, **options):
    return KVCache(model.cache_spec(**options), num_blocks=64)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_float64(tmp_path, variant):
    tensors = tiny_llama.weights(seed=1, **VARIANTS[variant])
    model = load(tiny_llama.write(tmp_path / "m.gguf", tensors))
    tokens = np.random.default_rng(2).integers(0, 280, 33)
    with cache_for(model, block_size=4) as cache:
        step = cache.extend(cache.admit([tokens]).ids, 33)
        logits = model.forward(tokens, step, cache, all_logits=True)
        cache.commit(step, tokens)
    assert logits.dtype == np.float32
    assert np.abs(logits - reference_logits(tensors, tokens)).max() < 2e-4


def test_a_bias_of_some_of_what_is_multiplied_at_once(tmp_path):
    tensors = tiny_llama.weights(biases=True)
    del tensors["blk.0.attn_k.bias"], tensors["blk.1.ffn_gate.bias"]
    model = load(tiny_llama.write(tmp_path / "m.gguf", tensors))
    tokens = np.arange(20)
    with cache_for(model) as cache:
        logits = model.forward(tokens, cache.extend(cache.admit([tokens]).ids, 20), cache, all_logits=True)
    assert np.abs(logits - reference_logits(tensors, tokens)).max() < 2e-4


def test_partly_rotated_heads_equal_float64(tmp_path):
    tensors = tiny_llama.weights()
    model = load(tiny_llama.write(tmp_path / "m.gguf", tensors, rope__dimension_count=4))
    tokens = np.arange(20)
    with cache_for(model) as cache:
        logits = model.forward(tokens, cache.extend(cache.admit([tokens]).ids, 20), cache, all_logits=True)
    assert np.abs(logits - reference_logits(tensors, tokens, rope_dim=4)).max() < 2e-4


def test_ragged_steps_equal_float64(tiny):
    """Three sequences whose tokens arrive in uneven chunks, among them single tokens."""
    model, _ = tiny
    random = np.random.default_rng(3)
    prompts = [random.integers(0, 280, length) for length in (5, 1, 21)]
    expected = [reference_logits(tiny_llama.weights(), prompt)[-1] for prompt in prompts]
    with cache_for(model, block_size=4) as cache:
        ids = cache.admit(prompts).ids
        done = [0, 0, 0]
        for chunks in ({0: 2, 2: 9}, {2: 1, 1: 1, 0: 3}, {2: 11}):
            tokens = np.concatenate([prompts[i][done[i] : done[i] + count] for i, count in chunks.items()])
            step = cache.extend(ids[list(chunks)], list(chunks.values()))
            logits = model.forward(tokens, step, cache)
            cache.commit(step, tokens)
            for row, (i, count) in enumerate(chunks.items()):
                done[i] += count
                if done[i] == len(prompts[i]):
                    assert np.abs(logits[row] - expected[i]).max() < 2e-4
        cache.check()
    assert done == [5, 1, 21]


class OnGpu:
    """A cache whose results have to be asked for, as those of CuPy."""

    def __init__(self, cache):
        self.cache = cache

    def attend(self, *arguments):
        out = self.cache.attend(*arguments)
        return type("Array", (), {"get": staticmethod(lambda: out)})()


def test_a_cache_on_a_gpu(tiny):
    model, _ = tiny
    with cache_for(model, block_size=4) as cache:
        step = cache.extend(cache.admit([range(9)]).ids, 9)
        expected = model.forward(range(9), step, cache)
        np.testing.assert_array_equal(model.forward(range(9), step, OnGpu(cache)), expected)


def test_very_large_activations_do_not_warn(tiny_path, tmp_path):
    tensors = tiny_llama.weights()
    for layer in range(2):
        tensors[f"blk.{layer}.ffn_gate.weight"] *= 1e4
    model = load(tiny_llama.write(tmp_path / "m.gguf", tensors))
    with cache_for(model) as cache:
        assert np.isfinite(model.forward([1, 2], cache.extend(cache.admit([[1, 2]]).ids, 2), cache)).all()


def test_cache_spec_has_the_models_shape(tiny):
    spec = tiny[0].cache_spec(dtype="float16", block_size=7)
    assert (spec.layers, spec.kv_heads, spec.head_dim, spec.v_head_dim) == (2, 2, 6, 6)
    assert (spec.dtype, spec.block_size) == ("float16", 7)


@pytest.mark.parametrize("tokens", [[0, 280], [-1, 0], [2**31, 0]])
def test_token_outside_of_the_vocabulary_is_refused(tiny, tokens):
    model, _ = tiny
    with cache_for(model) as cache:
        step = cache.extend(cache.admit([[0, 0]]).ids, 2)
        with pytest.raises(ValueError, match="the vocabulary ends at 279"):
            model.forward(tokens, step, cache)
        with pytest.raises(ValueError, match="the step has 2 new tokens"):
            model.forward([0], step, cache)
        with pytest.raises(TypeError, match="tokens is of float64"):
            model.forward([0.0, 1.0], step, cache)


def test_sequences_without_new_tokens(tiny):
    """They have no logits; those of others are not handed out for them."""
    model, _ = tiny
    with cache_for(model) as cache:
        ids = cache.admit([[1, 2], [3], [4]]).ids
        step = cache.extend(ids, [2, 0, 1])
        with pytest.raises(ValueError, match="sequence 1 of the step has no new token"):
            model.forward([1, 2, 4], step, cache)
        logits = model.forward([1, 2, 4], step, cache, all_logits=True)
        cache.commit(step, [1, 2, 4])
        assert np.abs(logits[2] - reference_logits(tiny_llama.weights(), [4])[-1]).max() < 2e-4
        step = cache.extend(ids, 0)
        with pytest.raises(ValueError, match="sequence 0 of the step has no new token"):
            model.forward([], step, cache)


def test_steps_of_nothing(tiny):
    model, _ = tiny
    with cache_for(model) as cache:
        for ids, all_logits in (([], False), ([], True), (cache.admit([[1]]).ids, True)):
            step = cache.extend(ids, 0)
            assert model.forward(np.empty(0, np.int32), step, cache, all_logits=all_logits).shape == (0, 280)
            assert model.forward([], step, cache, all_logits=all_logits).shape == (0, 280)
            cache.commit(step, [])


@pytest.mark.parametrize("at", [[2, 8, 3], [5, 5], [], np.arange(9, dtype=np.uint8)])
def test_logits_at_some_tokens(tiny, at):
    """Those of a draft's tokens, say; in the caller's order, within either sequence, twice if asked for twice."""
    model, _ = tiny
    tokens = np.arange(9)
    with cache_for(model, block_size=4) as cache:
        step = cache.extend(cache.admit([tokens[:3], tokens[3:]]).ids, [3, 6])
        expected = model.forward(tokens, step, cache, all_logits=True)
        logits = model.forward(tokens, step, cache, at=at)
    assert logits.shape == (len(at), 280)
    np.testing.assert_allclose(logits, expected[np.asarray(at, int)], atol=1e-5)


def test_logits_at_tokens_beside_a_sequence_without_new_ones(tiny):
    model, _ = tiny
    with cache_for(model) as cache:
        step = cache.extend(cache.admit([[1, 2], [3]]).ids, [2, 0])
        assert model.forward([1, 2], step, cache, at=[0]).shape == (1, 280)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"at": [0, 2]}, ValueError, "at reaches from 0 to 2; the step has tokens 0 to 1"),
        ({"at": [-1]}, ValueError, "at reaches from -1 to -1; the step has tokens 0 to 1"),
        ({"at": 1}, ValueError, r"at has shape \(\); it is one row of indices"),
        ({"at": [[0], [1]]}, ValueError, r"at has shape \(2, 1\)"),
        ({"at": [1.0]}, TypeError, "at is of float64"),
        ({"at": [True, False]}, TypeError, "at is of bool"),
        ({"at": [1], "all_logits": True}, ValueError, "at and all_logits are both given"),
    ],
)
def test_logits_that_cannot_be_had_are_refused(tiny, options, error, match):
    model, _ = tiny
    with cache_for(model) as cache:
        step = cache.extend(cache.admit([[1, 2]]).ids, 2)
        with pytest.raises(error, match=match):
            model.forward([1, 2], step, cache, **options)


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"expert_count": 8}, "expert_count is 8"),
        ({"rope__scaling__type": "yarn"}, "rope.scaling.type is 'yarn'; only 'none' is computed"),
        ({"rope__scale_linear": 4.0}, "rope.scale_linear is 4.0"),
        ({"attention__sliding_window": 4096}, "sliding_window is 4096"),
        ({"attention__head_count_kv": [2, 1]}, r"head_count_kv is \[2, 1\]; one number"),
        ({"attention__head_count_kv": 3}, "4 query heads cannot share 3"),
        ({"attention__head_count": 0}, "head_count is 0"),
        ({"block_count": 2**31}, "block_count is 2147483648; one number from 1 to 16777216"),
        ({"embedding_length": "wide"}, "embedding_length is 'wide'"),
        ({"rope__dimension_count": 5}, "5 rotated dimensions"),
        ({"rope__dimension_count": 8}, "8 rotated dimensions do not fit heads of 6"),
        ({"rope__freq_base": float("nan")}, "freq_base is nan; a positive number"),
        ({"attention__layer_norm_rms_epsilon": -1.0}, "epsilon is -1.0"),
        ({"block_count": 3}, "the tensor 'blk.2.attn_norm.weight' is missing"),
        ({"block_count": 1}, "9 tensors have no place in a llama model"),
        ({"feed_forward_length": 41}, r"'blk.0.ffn_gate.weight' has shape \(40, 24\); the metadata say \(41, 24\)"),
        ({"vocab_size": 281}, r"'token_embd.weight' has shape \(280, 24\)"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, metadata, match):
    path = tiny_llama.write(tmp_path / "m.gguf", **metadata)
    with pytest.raises(UnsupportedModel, match=match):
        load_model(path)


@pytest.mark.parametrize("arch", ["qwen2", "gemma2"])
def test_another_architecture_is_refused(tmp_path, arch):
    path = tiny_llama.write(tmp_path / "m.gguf", arch=arch)
    with pytest.raises(UnsupportedModel, match=f"architecture is '{arch}'; only 'llama' and 'gemma3' are computed"):
        load_model(path)
    with pytest.raises(UnsupportedModel, match=f"architecture is '{arch}'; only 'llama' is computed here"):
        load(path)


def test_unknown_tensor_is_refused(tmp_path):
    """A norm that other architectures have would silently be left out."""
    tensors = tiny_llama.weights() | {"blk.0.attn_q_norm.weight": np.ones(6, np.float32)}
    path = tiny_llama.write(tmp_path / "m.gguf", tensors)
    with pytest.raises(
        UnsupportedModel, match=r"1 tensors have no place in a llama model \(blk.0.attn_q_norm.weight\)"
    ):
        load_model(path)


def test_vocabulary_of_another_size_is_refused(tmp_path):
    tensors = tiny_llama.weights()
    tensors["token_embd.weight"] = np.zeros((300, 24), np.float32)
    path = tiny_llama.write(tmp_path / "m.gguf", tensors, vocab_size=300)
    with pytest.raises(UnsupportedModel, match="the tokenizer has 280 tokens, the model 300"):
        load_model(path)


def test_config_needs_its_keys():
    with pytest.raises(UnsupportedModel, match=r"llama.embedding_length is None; one number"):
        LlamaConfig.from_metadata({"general.architecture": "llama"})
