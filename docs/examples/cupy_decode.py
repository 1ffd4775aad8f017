"""
CuPy, or an emulated GPU
========================

Greedy decoding with CuPy on a GPU, without PyTorch; where there is none, the same with NumPy and the emulated GPU. ::

    pip install "pagedcache[cuda13]"      # or cuda12; without a GPU a C++ compiler instead
    python cupy_decode.py

A decoder of two layers with random weights, written once for both array libraries. Both sequences begin with the same
prompt, which is computed and stored once.
"""

import numpy as np

from pagedcache import CacheSpec, KVCache

LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2, 4, 2, 32, 64
HIDDEN = HEADS * HEAD_DIM
SPEC = CacheSpec(layers=LAYERS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=16, dtype="float16")


def library():
    """The array library and the backend."""
    try:
        import cupy

        if cupy.cuda.is_available():
            return cupy, "cuda"
    except ImportError:
        pass
    return np, "cuda-emulated"


def random_weights(xp, seed=0):
    rng = np.random.default_rng(seed)

    def matrix(*shape):
        return xp.asarray(rng.normal(0, 0.15, shape).astype(np.float32))

    wide = KV_HEADS * HEAD_DIM
    shapes = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN, wide), "v": (HIDDEN, wide), "o": (HIDDEN, HIDDEN)}
    shapes |= {"up": (HIDDEN, 4 * HIDDEN), "down": (4 * HIDDEN, HIDDEN)}
    layers = [{name: matrix(*shape) for name, shape in shapes.items()} for _ in range(LAYERS)]
    return {"embedding": matrix(VOCAB, HIDDEN), "head": matrix(HIDDEN, VOCAB), "layers": layers}


def rotate(xp, x, positions):
    angles = positions[:, None] * 10000.0 ** (-xp.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    cos, sin = xp.cos(angles)[:, None], xp.sin(angles)[:, None]
    left, right = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
    return xp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def forward(xp, weights, tokens, step, cache):
    """The likeliest next token after each token of a step."""
    x = weights["embedding"][xp.asarray(tokens)]
    positions = xp.asarray(step.positions)
    for number, layer in enumerate(weights["layers"]):
        q, k, v = ((x @ layer[name]).reshape(len(x), -1, HEAD_DIM) for name in "qkv")
        q, k = rotate(xp, q, positions), rotate(xp, k, positions)
        attended = cache.attend(number, *(array.astype(xp.float16) for array in (q, k, v)), step)
        x = x + attended.astype(xp.float32).reshape(x.shape) @ layer["o"]
        x = x + xp.maximum(x @ layer["up"], 0) @ layer["down"]
    best = (x @ weights["head"]).argmax(1)
    return best if xp is np else best.get()


def generate(prompt, endings, new_tokens):
    """Go on from a prompt with several endings; the tokens of each."""
    xp, backend = library()
    weights, texts = random_weights(xp), []
    with KVCache(SPEC, num_blocks=32, backend=backend) as cache:
        parent = cache.admit([prompt]).ids
        step = cache.extend(parent, len(prompt))
        forward(xp, weights, prompt, step, cache)
        cache.commit(step, prompt)
        ids = np.concatenate([parent, cache.fork(parent, len(endings) - 1)[0]])
        tokens = np.array(endings)
        for _ in range(new_tokens):
            step = cache.extend(ids, 1)
            best = forward(xp, weights, tokens, step, cache)
            cache.commit(step, tokens)
            tokens = best
            texts.append(tokens)
        print(f"{xp.__name__} on backend {backend}: {cache.stats().used} blocks, {cache.stats().shared} of them shared")
    return np.stack(texts, 1).tolist()


if __name__ == "__main__":
    for text in generate(prompt=list(range(20)), endings=[3, 7], new_tokens=8):
        print(text)
