"""
transformers
============

Beam search by transformers over a paged cache: the tokens of its own cache, in a third of the memory. ::

    python transformers_generate.py                  # a tiny random model
    python transformers_generate.py FOLDER           # a model that transformers loads, with its tokenizer
"""

import sys

import torch
import transformers
from packaging.version import Version
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from pagedcache.interop.transformers import PagedCache

CACHE = "cache" if Version(transformers.__version__) >= Version("5.24") else "past_key_values"


def load(folder=None):
    """A model, and the token ids of a prompt."""
    if folder is not None:
        ids = AutoTokenizer.from_pretrained(folder)("The capital of France is", return_tensors="pt").input_ids
        return AutoModelForCausalLM.from_pretrained(folder).eval(), ids
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=256, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, pad_token_id=0)
    return LlamaForCausalLM(config).eval(), torch.randint(3, 256, (1, 100))


def main(folder=None):
    model, ids = load(folder)
    options = {"num_beams": 4, "max_new_tokens": 24, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    expected = model.generate(ids, **options)

    model.set_attn_implementation("pagedcache")  # attention that reads blocks where they are
    cache = PagedCache(model.config, memory="64 MiB")
    tokens = model.generate(ids, **options, **{CACHE: cache})

    held = cache.kv.stats().peak_used * cache.kv.spec.bytes_per_block
    dense = 4 * tokens.shape[1] * cache.kv.spec.bytes_per_token
    print(f"tokens equal: {torch.equal(tokens, expected)}")
    print(f"K and V: {held / 1024:.0f} KiB in blocks, {dense / 1024:.0f} KiB in four rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
