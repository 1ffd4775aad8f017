"""Rows of a PagedCache: what they share, when they part, and what happens to them between forwards."""

import gc
import weakref

import pytest
from tiny_models import forward, gemma, generated, llama, nothing_left, padded, paged, prompt, torch, transformers

from pagedcache import PositionReleased

every_level = pytest.mark.parametrize("level", ["gather", "kernel"])


@pytest.fixture(scope="module")
def model():
    return llama()


def reference(model, ids):
    """A DynamicCache that has seen the ids, with sdpa."""
    model.set_attn_implementation("sdpa")
    cache = transformers.DynamicCache(config=model.config)
    forward(model, ids, cache)
    return cache


@every_level
def test_beams_share_the_prompt_from_the_first_forward(model, level):
    ids = prompt(1, 256)
    cache = paged(model, level, block_size=16)
    generated(model, ids, cache, num_beams=4, new=32)
    assert cache.kv.stats().peak_used <= 256 // 16 + 4 * -(-31 // 16)
    assert cache.kv.stats().shared >= 256 // 16


@every_level
def test_equal_rows_are_stored_once_and_others_apart(model, level):
    ids = prompt(3, 16)
    ids = ids[[0, 1, 0, 2, 1]]
    cache = paged(model, level)
    logits = forward(model, ids, cache)
    assert cache.kv.stats().used == 3 * 4
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(logits, forward(model, ids, None), rtol=1e-4, atol=1e-4)
    assert nothing_left(cache)


@every_level
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("make", [llama, gemma])
def test_rows_that_part_in_a_later_layer_get_blocks_of_their_own(make, layer, level):
    """As with adapters chosen row by row: the tokens are equal, and yet the rows are not."""
    model, ids = make(), prompt(1, 21).repeat(3, 1)
    model.set_attn_implementation("sdpa")

    def adapt(module, args, output):
        return torch.cat([output[:1], -output[1:2], output[2:]])

    model.model.layers[layer].mlp.register_forward_hook(adapt)
    expected, tokens = forward(model, ids, None), generated(model, ids)
    assert not torch.equal(expected[0], expected[1])
    cache = paged(model, level)
    torch.testing.assert_close(forward(model, ids, cache), expected, rtol=1e-4, atol=1e-4)
    cache.reset()
    assert torch.equal(generated(model, ids, cache), tokens)
    assert nothing_left(cache)


@every_level
def test_rows_part_in_a_later_chunk(level):
    model = llama()
    ids = prompt(1, 21).repeat(2, 1)
    calls = []

    def adapt(module, args, output):
        calls.append(1)
        return output if len(calls) == 1 else torch.cat([output[:1], output[1:] * 1.5])

    hook = model.model.layers[0].mlp.register_forward_hook(adapt)
    dynamic = reference(model, ids[:, :10])
    expected = forward(model, ids[:, 10:], dynamic)
    calls.clear()
    cache = paged(model, level)
    forward(model, ids[:, :10], cache)
    logits = forward(model, ids[:, 10:], cache)
    hook.remove()
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert nothing_left(cache)


@every_level
def test_pads_take_no_blocks_where_the_kernel_reads(model, level):
    ids, mask = padded([33, 0], 37)
    cache = paged(model, level)
    forward(model, ids, cache, attention_mask=mask)
    assert cache.kv.stats().used == (1 + 10 if level == "kernel" else 20)


@every_level
def test_rows_are_selected_repeated_and_reordered(model, level):
    ids, more = prompt(3, 14), prompt(4, 3, seed=8)
    dynamic, cache = reference(model, ids), paged(model, level)
    forward(model, ids, cache)
    for each in (dynamic, cache):
        each.batch_select_indices(torch.tensor([2, 0]))
        each.batch_repeat_interleave(2)
        each.reorder_cache(torch.tensor([3, 1, 1, 0]))
    assert cache.batch_size == 4
    model.set_attn_implementation("sdpa")
    expected = forward(model, more, dynamic)
    model.set_attn_implementation("pagedcache" if level == "kernel" else "sdpa")
    torch.testing.assert_close(forward(model, more, cache), expected, rtol=1e-4, atol=1e-4)
    assert nothing_left(cache)


@pytest.mark.parametrize("chosen", [[-1, 0], torch.tensor([True, False, True])], ids=["negative", "mask"])
def test_rows_are_selected_as_tensors_index(model, chosen):
    ids = prompt(3, 8)
    cache = paged(model, "kernel")
    forward(model, ids, cache)
    cache.batch_select_indices(chosen)
    assert cache.batch_size == 2
    assert cache.kv.stats().used == 2 * 2


@every_level
def test_crop_takes_tokens_back(model, level):
    ids = prompt(2, 20)
    cache = paged(model, level)
    forward(model, ids, cache)
    cache.crop(-13)
    assert cache.get_seq_length() == 7
    logits = forward(model, ids[:, 7:], cache)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(logits[:, -1], forward(model, ids, None)[:, -1], rtol=1e-4, atol=1e-4)


def test_crop_into_pads(model):
    ids, mask = padded([9, 0], 12)
    cache = paged(model, "kernel")
    forward(model, ids, cache, attention_mask=mask)
    cache.crop(-6)
    logits = forward(model, ids[:, 6:], cache, attention_mask=mask)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(
        logits[:, -1], forward(model, ids, None, attention_mask=mask)[:, -1], rtol=1e-4, atol=1e-4
    )
    assert nothing_left(cache)


def test_crop_of_what_a_window_let_go_changes_nothing():
    model, ids = gemma(), prompt(1, 37)
    cache = paged(model, "kernel")
    forward(model, ids, cache)
    with pytest.raises(PositionReleased) as caught:
        cache.crop(-5)
    assert "activate_past_recording" in caught.value.__notes__[0]
    assert cache.get_seq_length() == 37


def test_crop_of_recorded_tokens_with_windows():
    model, ids = gemma(), prompt(1, 37)
    cache = paged(model, "kernel")
    cache.activate_past_recording()
    forward(model, ids[:, :30], cache)
    assert cache.get_seq_length() == 30
    cache.crop(-5)
    assert cache.get_seq_length() == 25
    logits = forward(model, ids[:, 25:], cache)
    cache.crop(0)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(logits[:, -1], forward(model, ids, None)[:, -1], rtol=1e-4, atol=1e-4)
    assert nothing_left(cache)


def test_a_window_keeps_few_blocks():
    model = gemma(full=(0,), layers=2, window=12)
    cache = paged(model, "kernel", num_blocks=400)
    generated(model, prompt(1, 100), cache)
    full, sliding = cache.kv.stats().group_blocks
    assert full == -(-111 // 4)
    assert sliding <= 4


def test_memory_goes_with_the_cache(model):
    cache = paged(model, "kernel")
    generated(model, prompt(), cache)
    watched = weakref.ref(cache.kv)
    gc.disable()  # no cycle keeps it
    try:
        del cache
        assert watched() is None
    finally:
        gc.enable()
