"""A model's sizes from config.json and GGUF metadata, also from files that are not what they say."""

import json

import pytest

from pagedcache import UnsupportedModel
from pagedcache.sizing import ModelShape, read_shape

LLAMA = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
}


def config(tmp_path, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | changes))
    return path


def test_llama(tmp_path):
    assert read_shape(config(tmp_path)) == ModelShape(32, 32, 8, 128, 128, 8192)


def test_what_may_be_missing(tmp_path):
    changes = {"num_key_value_heads": None, "head_dim": 96, "hidden_size": None, "max_position_embeddings": 0}
    assert read_shape(config(tmp_path, **changes)) == ModelShape(32, 32, 32, 96, 96)


def test_text_within_a_larger_model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llava", "text_config": LLAMA, "vision_config": {"hidden_size": 5}}))
    assert read_shape(path).layers == 32


def test_windows_are_noted(tmp_path):
    assert read_shape(config(tmp_path, sliding_window=4096)).notes == (
        "some layers see a window of 4096 tokens and could hold less; they are computed as full",
    )
    assert read_shape(config(tmp_path, sliding_window=4096, use_sliding_window=False)).notes == ()
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    (note,) = read_shape(config(tmp_path, sliding_window=512, layer_types=kinds)).notes
    assert note.startswith("5 of 6 layers see a window of 512 tokens")
    assert read_shape(config(tmp_path, sliding_window=512, layer_types=["full_attention"] * 6)).notes == ()
    (note,) = read_shape(config(tmp_path, layer_types=["linear_attention", "full_attention"])).notes
    assert note.startswith("1 of 2 layers are 'linear_attention'")


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "32", [32], {}, 1 << 25, 10**400, None])
@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads"])
def test_sizes_that_are_refused(tmp_path, key, value):
    with pytest.raises(UnsupportedModel, match=f"{key} is .*; one number from 1 to 16777216 is needed") as error:
        read_shape(config(tmp_path, **{key: value}))
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim", "v_head_dim", "sliding_window"])
@pytest.mark.parametrize("value", [-1, True, "8", 1 << 25])
def test_optional_sizes_that_are_refused(tmp_path, key, value):
    with pytest.raises(UnsupportedModel, match=f"{key} is "):
        read_shape(config(tmp_path, **{key: value}))


def test_latent_attention_is_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match="kv_lora_rank is 512"):
        read_shape(config(tmp_path, kv_lora_rank=512))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\xfd", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"num_hidden_layers": ' + b"9" * 10_000 + b"}", "not JSON"),
        (b"[1]", "holds a list"),
        (b"{}", "num_attention_heads is None"),
        (b'{"text_config": 5}', "num_attention_heads is None"),
        (b" " * (4 << 20) + b"{}", "larger than 4 MiB"),
    ],
    ids=lambda value: None if isinstance(value, str) else value[:8].decode("latin-1"),
)
def test_files_that_are_refused(tmp_path, data, message):
    path = tmp_path / "config.JSON"
    path.write_bytes(data)
    with pytest.raises(UnsupportedModel, match=message):
        read_shape(path)


def metadata(**changes):
    sizes = {
        "general.architecture": "gemma3",
        "gemma3.block_count": 26,
        "gemma3.attention.head_count": 4,
        "gemma3.attention.head_count_kv": 1,
        "gemma3.attention.key_length": 256,
        "gemma3.context_length": 32768,
    }
    return sizes | {f"gemma3.{name}": value for name, value in changes.items()}


def test_gguf_of_any_architecture():
    assert ModelShape.from_metadata(metadata()) == ModelShape(26, 4, 1, 256, 256, 32768)
    windowed = ModelShape.from_metadata(metadata(**{"attention.sliding_window": 512, "attention.value_length": 128}))
    assert windowed.v_head_dim == 128
    assert windowed.notes[0].startswith("some layers see a window of 512 tokens")


def test_gguf_metadata_that_is_refused():
    with pytest.raises(UnsupportedModel, match=r"head_count_kv is \[1, 2\]"):
        ModelShape.from_metadata(metadata(**{"attention.head_count_kv": [1, 2]}))
    with pytest.raises(UnsupportedModel, match="kv_lora_rank"):
        ModelShape.from_metadata(metadata(**{"attention.kv_lora_rank": 512}))
    for name in (None, "", "\x1b[31mllama", "x" * 100, ["llama"]):
        with pytest.raises(UnsupportedModel, match=r"general.architecture is .*; it must be a name") as error:
            ModelShape.from_metadata({"general.architecture": name})
        assert str(error.value).isprintable()


def test_gguf_file(tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    import tiny_llama

    sizes = tiny_llama.SIZES
    shape = read_shape(tiny_llama.write(tmp_path / "tiny.gguf"))
    assert shape == ModelShape(
        sizes["layers"], sizes["heads"], sizes["kv_heads"], sizes["head_dim"], sizes["head_dim"], sizes["context"]
    )
