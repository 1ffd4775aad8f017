"""A llama model of random numbers, small enough for any test, written with the gguf library's own writer."""

import numpy as np

SIZES = {
    "vocab": 280,
    "context": 256,
    "layers": 2,
    "width": 24,
    "ffn_width": 40,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 6,
}


def byte_alphabet():
    """GPT-2's printable character for each byte, as the tokenizers library has it, in the order of code points."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def vocabulary():
    """All 256 bytes, a few merges, ChatML's tokens, and unused tokens up to the vocabulary's size."""
    merges = ["t h", "th e", "Ġ the", "a n", "an d"]
    tokens = byte_alphabet() + [merge.replace(" ", "") for merge in merges]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    unused = [f"<unused{i}>" for i in range(SIZES["vocab"] - len(tokens) - len(control))]
    types = [1] * len(tokens) + [3] * (len(control) + len(unused))
    return tokens + control + unused, types, merges


def weights(seed=0, *, biases=False, tied=True, rope_factors=False):
    """float32 tensors by name, in NumPy's shapes."""
    random = np.random.default_rng(seed)
    s = SIZES

    def normal(*shape):
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    tensors = {
        "token_embd.weight": random.standard_normal((s["vocab"], s["width"])).astype(np.float32),
        "output_norm.weight": 1 + 0.1 * normal(s["width"]),
    }
    q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    shapes = {
        "attn_q": (q, s["width"]),
        "attn_k": (kv, s["width"]),
        "attn_v": (kv, s["width"]),
        "attn_output": (s["width"], q),
        "ffn_gate": (s["ffn_width"], s["width"]),
        "ffn_up": (s["ffn_width"], s["width"]),
        "ffn_down": (s["width"], s["ffn_width"]),
    }
    for layer in range(s["layers"]):
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = 1 + 0.1 * normal(s["width"])
        for name, shape in shapes.items():
            # Strong layers, so that what a text goes on with depends on more than its last token.
            tensors[f"blk.{layer}.{name}.weight"] = 3 * normal(*shape)
            if biases:
                tensors[f"blk.{layer}.{name}.bias"] = normal(shape[0])
    if not tied:
        tensors["output.weight"] = normal(s["vocab"], s["width"])
    if rope_factors:
        tensors["rope_freqs.weight"] = np.linspace(1, 4, s["head_dim"] // 2, dtype=np.float32)
    return tensors


def write(path, tensors=None, *, arch="llama", **metadata):
    """Write the model; `metadata` adds ``llama.*`` keys, dots written as two underscores, or replaces them."""
    s = SIZES
    values = {
        "context_length": s["context"],
        "block_count": s["layers"],
        "embedding_length": s["width"],
        "feed_forward_length": s["ffn_width"],
        "attention.head_count": s["heads"],
        "attention.head_count_kv": s["kv_heads"],
        "rope.freq_base": 1000.0,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    values |= {name.replace("__", "."): value for name, value in metadata.items()}
    named = {f"llama.{name}": value for name, value in values.items()}
    return write_gguf(path, arch, named, weights() if tensors is None else tensors)


def write_gguf(path, arch, values, tensors):
    """Write a file with this metadata, these tensors and the vocabulary."""
    import gguf

    writer = gguf.GGUFWriter(path, arch)
    for name, value in values.items():
        kinds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool}
        kinds.get(type(value), writer.add_array)(name, value)
    tokens, types, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
