"""Small random models of transformers, and generate with a cache under whatever name its version has for that."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from pagedcache.interop.transformers import PagedCache  # noqa: E402

VERSION = tuple(int(number) for number in transformers.__version__.split(".")[:2])
CACHE = "cache" if VERSION >= (5, 24) else "past_key_values"
SMALL = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


def sharpened(model):
    """Larger weights, so that tokens depend on what came before them."""
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(3)
    return model.eval()


def llama(**options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL | {"num_hidden_layers": 3, "num_key_value_heads": 2} | options)
    return sharpened(transformers.LlamaForCausalLM(config))


def gemma(full=(2,), layers=5, window=12, **options):
    """Of gemma3's architecture: layers with a window, but for those in `full`."""
    torch.manual_seed(0)
    kinds = ["full_attention" if layer in full else "sliding_attention" for layer in range(layers)]
    options = {"num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16} | options
    config = transformers.Gemma3TextConfig(
        **SMALL | options, num_hidden_layers=layers, layer_types=kinds, sliding_window=window
    )
    return sharpened(transformers.Gemma3ForCausalLM(config))


MODELS = {"llama": llama, "gemma": gemma}


def paged(model, level, **options):
    """A cache of this level, and the implementation of attention that goes with it."""
    model.set_attn_implementation("pagedcache" if level == "kernel" else "sdpa")
    return PagedCache(model.config, level=level, **{"num_blocks": 200, "block_size": 4} | options)


def generated(model, ids, cache=None, mask=None, new=12, **options):
    """What generate returns, from the same random numbers each time; without a cache, sdpa with a DynamicCache."""
    torch.manual_seed(1)
    if cache is None:
        model.set_attn_implementation("sdpa")
    mask = torch.ones_like(ids) if mask is None else mask
    options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0} | options
    return model.generate(ids, attention_mask=mask, **options, **{CACHE: cache} if cache is not None else {})


def forward(model, ids, cache, **options):
    """Logits of one forward."""
    with torch.no_grad():
        return model(ids, **{CACHE: cache}, **options).logits


def prompt(rows=1, length=37, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, SMALL["vocab_size"], (rows, length), generator=generator)


def padded(pads, length=37):
    """Prompts with so many pads on their left, and their mask."""
    ids, mask = prompt(len(pads), length), torch.ones(len(pads), length, dtype=torch.long)
    for row, count in enumerate(pads):
        ids[row, :count], mask[row, :count] = 0, 0
    return ids, mask


def nothing_left(cache):
    """Whether the books are in order, and reset() gives every block back."""
    cache.kv.check()
    cache.reset()
    cache.kv.check()
    return cache.kv.stats().used == 0 and cache.kv.open_steps == ()
