"""What a PagedCache refuses, in words, and that nothing is lost by it."""

import pytest
from tiny_models import (
    CACHE,
    forward,
    gemma,
    generated,
    llama,
    nothing_left,
    padded,
    paged,
    prompt,
    torch,
    transformers,
)

from pagedcache import OutOfBlocks, UnsupportedModel
from pagedcache.interop.transformers import PagedCache

every_level = pytest.mark.parametrize("level", ["gather", "kernel"])


@pytest.fixture(scope="module")
def model():
    return llama()


@every_level
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_forward_that_raises_changes_nothing(model, layer, level):
    ids = prompt(2, 20)
    cache = paged(model, level)
    forward(model, ids[:, :12], cache)

    def fail(*_):
        raise InterruptedError

    hook = model.model.layers[layer].mlp.register_forward_hook(fail)
    with pytest.raises(InterruptedError):
        forward(model, ids[:, 12:], cache)
    hook.remove()
    # What the last layer stored is whole, and counts; what came before it does not.
    length = cache.get_seq_length()
    assert length == (20 if layer == 2 else 12)
    cache.crop(12 - length)
    logits = forward(model, ids[:, 12:], cache)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(logits[:, -1], forward(model, ids, None)[:, -1], rtol=1e-4, atol=1e-4)
    assert nothing_left(cache)


@every_level
def test_out_of_blocks_says_what_to_do_and_loses_nothing(model, level):
    ids = prompt(1, 20)
    cache = paged(model, level, num_blocks=6)
    forward(model, ids, cache)
    with pytest.raises(OutOfBlocks) as caught:
        forward(model, prompt(1, 20, seed=9), cache)
    assert "memory=" in caught.value.__notes__[0]
    assert cache.get_seq_length() == 20
    logits = forward(model, ids[:, :3], cache)
    model.set_attn_implementation("sdpa")
    expected = forward(model, torch.cat([ids, ids[:, :3]], dim=1), None)
    torch.testing.assert_close(logits[:, -1], expected[:, -1], rtol=1e-4, atol=1e-4)
    assert nothing_left(cache)


@every_level
def test_rows_that_part_without_room_for_it(level):
    model, ids = llama(), prompt(1, 20).repeat(3, 1)
    cache = paged(model, level, num_blocks=12)
    hook = model.model.layers[0].mlp.register_forward_hook(lambda module, args, out: out * torch.rand(3, 1, 1))
    with pytest.raises(OutOfBlocks):
        forward(model, ids, cache)
    hook.remove()
    assert cache.get_seq_length() == 0
    forward(model, ids, cache)
    assert cache.kv.stats().used == 5
    assert nothing_left(cache)


def test_attention_of_another_name_is_noticed(model):
    cache = paged(model, "kernel")
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="set_attn_implementation"):
        forward(model, prompt(), cache)
    model.set_attn_implementation("pagedcache")
    assert torch.equal(generated(model, prompt(), cache), generated(model, prompt()))


@pytest.mark.parametrize("other", ["none", "gather"])
def test_attention_without_a_cache_of_its_level(model, other):
    cache = paged(model, "gather") if other == "gather" else None
    model.set_attn_implementation("pagedcache")
    with pytest.raises(ValueError, match="cache=PagedCache"):
        forward(model, prompt(), cache)


def test_gradients_are_refused(model):
    cache = paged(model, "kernel")
    with pytest.raises(ValueError, match="no_grad"), torch.enable_grad():
        model(prompt(), **{CACHE: cache})


def test_dropout_is_refused():
    model = llama(attention_dropout=0.5)
    cache = paged(model, "kernel")
    model.train()
    with pytest.raises(ValueError, match="eval"):
        forward(model, prompt(), cache)


def test_masks_that_the_kernel_has_not(model):
    ids, mask = padded([0, 0], 12)
    mask[1, 5] = 0
    cache = paged(model, "kernel")
    with pytest.raises(ValueError, match="row 1 behind the first"):
        forward(model, ids, cache, attention_mask=mask)
    square = torch.ones(2, 1, 12, 12, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="gather"):
        forward(model, ids, cache, attention_mask=square)
    assert nothing_left(cache)


def test_a_mask_that_forgets_its_pads(model):
    ids, mask = padded([5, 0], 12)
    cache = paged(model, "kernel")
    forward(model, ids, cache, attention_mask=mask)
    with pytest.raises(ValueError, match=r"begin with \[0, 0\] pads"):
        forward(model, ids[:, :1], cache)
    assert cache.get_seq_length() == 12


def test_attention_weights_are_refused(model):
    cache = paged(model, "kernel")
    with pytest.raises(ValueError, match="output_attentions"):
        forward(model, prompt(), cache, output_attentions=True)


@every_level
def test_another_batch_needs_a_reset(model, level):
    cache = paged(model, level)
    forward(model, prompt(2), cache)
    with pytest.raises(ValueError, match="reset"):
        forward(model, prompt(3), cache)


def test_a_batch_beyond_max_sequences(model):
    cache = paged(model, "kernel", max_sequences=2)
    with pytest.raises(ValueError, match="max_sequences=2"):
        forward(model, prompt(3), cache)
    forward(model, prompt(2), cache)


def test_every_layer_slides_and_the_window_ends():
    model = gemma(full=(), layers=3, window=12)
    cache = paged(model, "kernel")
    with pytest.raises(UnsupportedModel, match="gather"):
        generated(model, prompt(), cache)


def test_models_that_are_no_decoders():
    with pytest.raises(UnsupportedModel, match="encoder"):
        PagedCache(transformers.T5Config(), num_blocks=8)


def test_layers_of_another_kind():
    config = transformers.LlamaConfig(num_hidden_layers=2)
    config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(UnsupportedModel, match="linear_attention"):
        PagedCache(config, num_blocks=8)


def test_shapes_that_the_configuration_does_not_say(model):
    config = transformers.LlamaConfig(**model.config.to_dict() | {"num_key_value_heads": 4})
    cache = PagedCache(config, num_blocks=8, level="gather")
    model.set_attn_implementation("sdpa")
    with pytest.raises(UnsupportedModel, match="2 heads of 12; the configuration says 4"):
        forward(model, prompt(), cache)


def test_no_rounding_unasked():
    model = llama()
    model.config.dtype = torch.bfloat16
    cache = paged(model, "kernel")
    with pytest.raises(ValueError, match="rounded"):
        forward(model, prompt(), cache)
    assert forward(model, prompt(), paged(model, "kernel", dtype="bfloat16")).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "num_blocks"),
        ({"num_blocks": 8, "level": "dense"}, "'kernel' or 'gather'"),
        ({"num_blocks": 8, "level": "gather", "dtype": "int8"}, "cannot hand to torch"),
        ({"num_blocks": 8, "dtype": "float64"}, "float64"),
    ],
)
def test_arguments(model, options, words):
    with pytest.raises(ValueError, match=words):
        PagedCache(model.config, **options)


@every_level
def test_crops_that_make_no_sense(model, level):
    cache = paged(model, level)
    forward(model, prompt(), cache)
    with pytest.raises(ValueError, match="minus the number"):
        cache.crop(3)
    with pytest.raises(ValueError, match="holds 37"):
        cache.crop(-38)
    assert cache.get_seq_length() == 37
