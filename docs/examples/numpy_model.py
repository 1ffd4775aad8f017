"""
A model in NumPy
================

A small transformer in NumPy on a paged KV cache: RMSNorm, RoPE, grouped queries, SwiGLU.

Two prompts share a beginning, which is computed once; they are continued in one batch, greedily, and one of them is
then forked into two samples. At each point the paged result is compared with the model run anew on the whole text.
The weights are random and seeded: what it writes means nothing, and the same everywhere. Run it with ::

    python docs/examples/numpy_model.py
"""

import numpy as np

from pagedcache import CacheSpec, KVCache

LAYERS, WIDTH, HEADS, KV_HEADS, DIM, INNER, VOCAB = 3, 64, 8, 2, 16, 160, 96
RNG = np.random.default_rng(0)


def matrix(rows, columns):
    return RNG.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(rows))


EMBEDDING = RNG.standard_normal((VOCAB, WIDTH), np.float32)
HEAD = matrix(WIDTH, VOCAB)
SHAPES = {"q": (WIDTH, HEADS * DIM), "k": (WIDTH, KV_HEADS * DIM), "v": (WIDTH, KV_HEADS * DIM)}
SHAPES |= {"o": (HEADS * DIM, WIDTH), "gate": (WIDTH, INNER), "up": (WIDTH, INNER), "down": (INNER, WIDTH)}
WEIGHTS = [{name: matrix(*shape) for name, shape in SHAPES.items()} for _ in range(LAYERS)]
FREQUENCIES = 10000.0 ** -(np.arange(0, DIM, 2) / DIM)  # radians per position


def rms_norm(x):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-5))


def rope(x, positions):
    """Turn the pairs (0, 1), (2, 3), ... of each head [tokens, heads, dim] by angles that grow with the position."""
    turn = np.exp(1j * positions[:, None, None] * FREQUENCIES).astype(np.complex64)
    return (x.view(np.complex64) * turn).view(np.float32)


def forward(tokens, positions, attend):
    """Logits [tokens, vocab] of a ragged batch; `attend(layer, q, k, v)` knows who sees whom."""
    x = EMBEDDING[tokens]
    for layer, w in enumerate(WEIGHTS):
        h = rms_norm(x)
        q, k, v = ((h @ w[name]).reshape(len(h), -1, DIM) for name in "qkv")
        seen = attend(layer, rope(q, positions), rope(k, positions), v)
        x = x + seen.reshape(len(h), -1) @ w["o"]
        h = rms_norm(x)
        gate = h @ w["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["up"])) @ w["down"]
    return rms_norm(x) @ HEAD


def dense_logits(text):
    """What follows a whole text, without a cache: every token attends to all before it and to itself."""

    def attend(layer, q, k, v):
        k, v = (np.repeat(part, HEADS // KV_HEADS, axis=1) for part in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.float32(np.sqrt(DIM))
        scores[:, np.triu(np.ones((len(q), len(q)), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.einsum("hij,jhd->ihd", weights / weights.sum(axis=-1, keepdims=True), v)

    return forward(np.array(text), np.arange(len(text)), attend)[-1]


def paged_logits(cache, ids, new):
    """Append each sequence's new tokens, and return what follows each: logits [sequences, vocab]."""
    step = cache.extend(ids, [len(tokens) for tokens in new])
    tokens, ends = np.concatenate(new), step.qo_indptr[1:] - 1
    logits = forward(tokens, step.positions, lambda layer, q, k, v: cache.attend(layer, q, k, v, step))[ends]
    cache.commit(step, tokens)
    return logits


def check(logits, texts):
    for row, text in zip(logits, texts, strict=True):
        assert np.allclose(row, dense_logits(text), atol=1e-3), "paged and dense logits differ"


def main():
    shared = RNG.integers(0, VOCAB, 24).tolist()  # a system prompt, say
    texts = [shared + RNG.integers(0, VOCAB, 5).tolist(), shared + RNG.integers(0, VOCAB, 9).tolist()]
    with KVCache(CacheSpec(LAYERS, KV_HEADS, DIM, block_size=8), num_blocks=32) as cache:
        ids, rows = [], []
        for text in texts:
            admission = cache.admit([text])
            found = int(admission.cached[0])
            print(f"{len(text)} tokens, {found} of them found in the prefix cache")
            rows.append(paged_logits(cache, admission.ids, [text[found:]])[0])
            ids.append(admission.ids[0])
        assert found == len(shared)
        for _ in range(12):  # both in one batch, greedily
            check(rows, texts)
            for text, row in zip(texts, rows, strict=True):
                text.append(int(row.argmax()))
            rows = paged_logits(cache, ids, [text[-1:] for text in texts])

        ((twin,),) = cache.fork(ids[:1])  # a second sample on the blocks of the first text
        ids, texts, rows = [ids[0], twin], [texts[0], list(texts[0])], [rows[0], rows[0]]
        for _ in range(6):
            check(rows, texts)
            for text, row in zip(texts, rows, strict=True):
                chances = np.exp((row - row.max()) / 0.8)
                text.append(int(RNG.choice(VOCAB, p=chances / chances.sum())))
            rows = paged_logits(cache, ids, [text[-1:] for text in texts])
        assert texts[0] != texts[1]
        print(f"two samples, {cache.pool.num_shared} blocks shared, {cache.pool.num_used} in use")


if __name__ == "__main__":
    main()
