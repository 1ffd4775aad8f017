"""generate() over a PagedCache gives the tokens of DynamicCache with sdpa in every mode, and leaves no block behind."""

import pytest
from tiny_models import (
    MODELS,
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

TWO = prompt(2)
PADDED, MASK = padded([9, 0, 3])
REPEATING = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12] * 4])
MODES = {
    "greedy": {},
    "one token": {"ids": prompt(3, 1)},
    "sampled": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 4},
    "beams of two prompts": {"ids": TWO, "num_beams": 3, "num_return_sequences": 2},
    "padded": {"ids": PADDED, "mask": MASK},
    "padded beams": {"ids": PADDED, "mask": MASK, "num_beams": 3},
    "prompt lookup": {"ids": REPEATING, "prompt_lookup_num_tokens": 4, "new": 24},
    "chunks": {"ids": PADDED, "mask": MASK, "prefill_chunk_size": 4},
    "chunks and beams": {"num_beams": 3, "prefill_chunk_size": 5},
}
every_level = pytest.mark.parametrize("level", ["gather", "kernel"])


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]()


@every_level
@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_those_of_a_dynamic_cache(model, mode, level):
    options = {"ids": prompt()} | MODES[mode]
    expected = generated(model, **options)
    cache = paged(model, level)
    assert torch.equal(generated(model, cache=cache, **options), expected)
    assert nothing_left(cache)


@every_level
def test_a_conversation_goes_on_in_the_same_cache(model, level):
    cache = paged(model, level)
    first = generated(model, prompt(), cache)
    both = torch.cat([first, prompt(1, 9, seed=5)], dim=1)
    second = generated(model, both, cache)
    assert cache.get_seq_length() == second.shape[1] - 1
    assert torch.equal(second, generated(model, both))
    assert nothing_left(cache)


@every_level
def test_a_padded_conversation_goes_on(model, level):
    cache = paged(model, level)
    first = generated(model, PADDED, cache, MASK)
    both = torch.cat([first, prompt(3, 9, seed=5)], dim=1)
    mask = torch.cat([MASK, torch.ones(3, both.shape[1] - MASK.shape[1], dtype=torch.long)], dim=1)
    assert torch.equal(generated(model, both, cache, mask), generated(model, both, mask=mask))
    assert nothing_left(cache)


@every_level
def test_prompt_lookup_goes_on_in_a_cache(model, level):
    cache = paged(model, level)
    first = generated(model, REPEATING, cache, prompt_lookup_num_tokens=4, new=16)
    second = generated(model, first, cache, new=8)
    assert torch.equal(second, generated(model, first, new=8))
    assert nothing_left(cache)


@every_level
def test_a_cache_is_used_again_after_reset(model, level):
    cache = paged(model, level)
    generated(model, TWO, cache)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(generated(model, prompt(), cache), generated(model, prompt()))


@every_level
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_models_of_half_precision(name, level):
    """Tokens of float32 kernels over rounded K and V; sdpa rounds elsewhere, so logits are close and not equal."""
    model = llama().to(getattr(torch, name))
    cache = paged(model, level, dtype=name)
    ids = prompt(2)
    logits = forward(model, ids, cache)
    model.set_attn_implementation("sdpa")
    expected = forward(model, ids, None)
    assert logits.dtype == expected.dtype
    torch.testing.assert_close(logits.float(), expected.float(), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(("dtype", "error"), [("int8", 0.05), ("float8_e4m3", 0.1)])
def test_quantised_storage_is_close(dtype, error):
    model = llama()
    cache = paged(model, "kernel", dtype=dtype)
    logits = forward(model, prompt(), cache)
    model.set_attn_implementation("sdpa")
    expected = forward(model, prompt(), None)
    assert cache.kv.spec.dtype == dtype
    assert (logits - expected).abs().mean() < error * expected.abs().mean()


@every_level
def test_a_model_whose_layers_all_slide(level):
    model = gemma(full=(), layers=3, window=64)
    cache = paged(model, level)
    assert torch.equal(generated(model, prompt(), cache), generated(model, prompt()))


def test_gather_goes_beyond_the_window_of_a_model_whose_layers_all_slide():
    model = gemma(full=(), layers=3, window=12)
    cache = paged(model, "gather")
    assert torch.equal(generated(model, prompt(), cache), generated(model, prompt()))
    assert nothing_left(cache)


@pytest.mark.parametrize("full", [(0,), (4,), (1, 3), (0, 1, 2, 3)], ids=str)
def test_any_order_of_full_and_sliding_layers(full):
    model = gemma(full=full)
    cache = paged(model, "kernel")
    assert torch.equal(generated(model, prompt(), cache), generated(model, prompt()))
    assert nothing_left(cache)


def test_soft_caps_of_gemma2():
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=96, hidden_size=48, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, sliding_window=12, attn_logit_softcapping=5.0, pad_token_id=0,
        eos_token_id=None,
    )  # fmt: skip
    model = transformers.Gemma2ForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    torch.manual_seed(1)
    ids = prompt()
    expected = model.generate(ids, max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(ids))
    assert torch.equal(generated(model, ids, paged(model, "kernel")), expected)
