"""The gemma3 arithmetic equals a plain float64 one, and what it does not compute is refused."""

import numpy as np
import pytest
import tiny_gemma
from dense_cache import DenseCache
from dense_gemma import reference_logits

from pagedcache import KVCache
from pagedcache.errors import UnsupportedModel
from pagedcache.serving.models import GemmaConfig, GemmaModel, load_model
from pagedcache.serving.models.gemma import _gelu

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

TOKENS = np.random.default_rng(2).integers(0, 280, 33)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(tiny_gemma.write(tmp_path_factory.mktemp("gemma") / "tiny.gguf"))[0]


def logits_of(model, tokens, chunks=(), **options):
    """Logits after every token, computed in pieces that end at `chunks`."""
    cache = DenseCache(model.cache_spec(**options), len(tokens))
    parts = np.split(tokens, chunks)
    return np.concatenate([model.forward(part, cache.extend(len(part)), cache, all_logits=True) for part in parts])


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_float64(tmp_path, tied):
    tensors = tiny_gemma.weights(seed=1, tied=tied)
    model, _ = load_model(tiny_gemma.write(tmp_path / "m.gguf", tensors))
    logits = logits_of(model, TOKENS)
    assert isinstance(model, GemmaModel)
    assert logits.dtype == np.float32
    assert np.abs(logits - reference_logits(tensors, TOKENS)).max() < 2e-4


@pytest.mark.parametrize("chunks", [range(1, 33), (1, 2, 9), (16,)])
def test_logits_do_not_depend_on_chunks(model, chunks):
    np.testing.assert_allclose(logits_of(model, TOKENS, chunks), logits_of(model, TOKENS), atol=5e-5)


def test_the_window_matters(model):
    """The reference with another window differs, by more than the model may."""
    logits = logits_of(model, TOKENS)
    for window in (4, 6):
        assert np.abs(logits - reference_logits(tiny_gemma.weights(), TOKENS, window=window)).max() > 1e-2


def test_layers_that_slide_are_read_from_the_file(tmp_path):
    sliding = [True, False, False, True, True, True]
    path = tiny_gemma.write(tmp_path / "m.gguf", attention__sliding_window_pattern=sliding)
    model, _ = load_model(path)
    assert [group.layers for group in model.cache_spec().groups] == [2, 2, 2]
    expected = reference_logits(tiny_gemma.weights(), TOKENS, sliding=sliding)
    assert np.abs(logits_of(model, TOKENS) - expected).max() < 2e-4


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_ragged_steps_on_a_cache(model, block_size):
    """Two sequences whose tokens arrive in uneven chunks, beyond the window, whose blocks are released."""
    texts = TOKENS, TOKENS[5:17]
    expected = [reference_logits(tiny_gemma.weights(), text) for text in texts]
    spec = model.cache_spec(block_size=block_size, max_step_tokens=8)
    done = [0, 0]
    with KVCache(spec, num_blocks=200) as cache:
        ids = cache.admit(texts).ids
        for counts in ([8, 3], [8, 1], [1, 0], [1, 8], [8, 0], [7, 0]):
            rows = [row for row in range(2) if counts[row]]
            parts = [texts[row][done[row] : done[row] + counts[row]] for row in rows]
            step = cache.extend(ids[rows], [counts[row] for row in rows])
            logits = model.forward(np.concatenate(parts), step, cache)
            cache.commit(step, np.concatenate(parts))
            for found, row in zip(logits, rows, strict=True):
                done[row] += counts[row]
                assert np.abs(found - expected[row][done[row] - 1]).max() < 2e-4
            cache.check()
            most = 2 * (-(-(5 - 1 + 8) // block_size) + 1)
            assert max(cache.stats().group_blocks[1:]) <= most
    assert done == [33, 12]


def test_cache_spec_has_groups_of_one_size(model):
    spec = model.cache_spec(dtype="float16", block_size=7, max_step_tokens=9)
    assert [(group.kind, group.layers, group.window) for group in spec.groups] == [
        ("full", 2, None),
        ("sliding_window", 2, 5),
        ("sliding_window", 2, 5),
    ]
    assert (spec.layers, spec.kv_heads, spec.head_dim, spec.v_head_dim) == (6, 1, 8, 8)
    assert (spec.dtype, spec.block_size, spec.max_step_tokens) == ("float16", 7, 9)


@pytest.mark.parametrize(
    ("layers", "pattern", "groups"),
    [(18, 6, [3, 3, 3, 3, 3, 3]), (26, 6, [4, 4, 4, 4, 4, 4, 2]), (4, 1, [4]), (5, 2, [2, 2, 1])],
)
def test_groups_of_other_models(layers, pattern, groups):
    metadata = config_of(block_count=layers, attention__sliding_window_pattern=pattern)
    spec = GemmaConfig.from_metadata(metadata).cache_spec()
    assert [group.layers for group in spec.groups] == groups


def config_of(**metadata):
    """The metadata that a config needs."""
    values = {
        "context_length": 100,
        "block_count": 6,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.sliding_window": 10,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "vocab_size": 50,
    }
    values |= {name.replace("__", "."): value for name, value in metadata.items()}
    return {"general.architecture": "gemma3"} | {f"gemma3.{name}": value for name, value in values.items()}


def test_what_files_leave_out_is_as_in_gemma():
    config = GemmaConfig.from_metadata(config_of())
    assert config.sliding == (True, True, True, True, True, False)
    assert (config.rope_base, config.local_rope_base) == (1_000_000.0, 10_000.0)
    assert (config.head_dim, config.v_head_dim, config.kv_heads) == (8, 8, 4)


def test_very_large_activations_do_not_warn():
    x = np.array([-1e30, -1e15, -20, -1, 0, 1, 20, 1e15, 1e30], np.float32)
    np.testing.assert_allclose(_gelu(x), [0, 0, 0, -0.158808, 0, 0.841192, 20, 1e15, 1e30], rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"expert_count": 8}, "gemma3.expert_count is 8; only 0 is computed"),
        ({"rope__scaling__type": "linear"}, "rope.scaling.type is 'linear'; only 'none' is computed"),
        ({"rope__scaling__factor": 8.0}, "rope.scaling.factor is 8.0"),
        ({"attention__scale": 0.1}, "attention.scale is 0.1"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"attention__causal": False}, "attention.causal is False"),
        ({"attention__sliding_window": 0}, "sliding_window is 0; one number from 1 to"),
        ({"attention__sliding_window": None}, "sliding_window is None; one number"),
        ({"attention__sliding_window": 2**31}, "sliding_window is 2147483648"),
        ({"attention__sliding_window_pattern": 0}, "sliding_window_pattern is 0; one number"),
        ({"attention__sliding_window_pattern": 7}, "pattern is 7; at least one of 6 layers has to see everything"),
        ({"attention__sliding_window_pattern": [True] * 6}, "at least one of 6 layers"),
        ({"attention__sliding_window_pattern": [False] * 5}, "a truth value for each of 6 layers, is needed"),
        ({"attention__sliding_window_pattern": [1, 1, 0, 1, 1, 0]}, r"pattern is \[1, 1, 0, 1, 1, 0\]; a number, or"),
        ({"attention__sliding_window_pattern": "third"}, "sliding_window_pattern is 'third'"),
        ({"attention__head_count_kv": 3}, "4 query heads cannot share 3"),
        ({"attention__head_count_kv": [1] * 6}, r"head_count_kv is \[1, 1, 1, 1, 1, 1\]; one number"),
        ({"attention__key_length": 7}, "7 rotated dimensions of 7; only all of an even number"),
        ({"rope__dimension_count": 4}, "4 rotated dimensions of 8"),
        ({"rope__freq_base": float("nan")}, "freq_base is nan; a positive number"),
        ({"rope__freq_base_swa": -1.0}, "freq_base_swa is -1.0"),
        ({"attention__layer_norm_rms_epsilon": 0.0}, "epsilon is 0.0"),
        ({"block_count": 2**31}, "block_count is 2147483648; one number from 1 to 4096"),
        ({"block_count": 7}, "the tensor 'blk.6.attn_norm.weight' is missing"),
        ({"block_count": 3}, "39 tensors have no place in a gemma3 model"),
        ({"embedding_length": 2**24}, r"'token_embd.weight' has shape \(280, 24\); the metadata say \(280, 16777216\)"),
        ({"feed_forward_length": 41}, r"'blk.0.ffn_gate.weight' has shape \(40, 24\); the metadata say \(41, 24\)"),
        ({"vocab_size": 281}, r"'token_embd.weight' has shape \(280, 24\)"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, metadata, match):
    path = tiny_gemma.write(tmp_path / "m.gguf", **metadata)
    with pytest.raises(UnsupportedModel, match=match):
        load_model(path)


@pytest.mark.parametrize("name", ["attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"])
def test_a_missing_norm_is_refused(tmp_path, name):
    tensors = tiny_gemma.weights()
    del tensors[f"blk.1.{name}.weight"]
    with pytest.raises(UnsupportedModel, match=f"the tensor 'blk.1.{name}.weight' is missing"):
        load_model(tiny_gemma.write(tmp_path / "m.gguf", tensors))


def test_a_long_value_is_not_repeated(tmp_path):
    path = tiny_gemma.write(tmp_path / "m.gguf", attention__sliding_window_pattern=[True] * 100_000)
    with pytest.raises(UnsupportedModel) as caught:
        load_model(path)
    assert len(str(caught.value)) < 300
