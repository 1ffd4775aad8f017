"""
JAX
===

Greedy decoding with JAX and a paged cache: K and V are donated JAX arrays, every step is one compiled program. ::

    pip install "pagedcache[jax]"         # and a C compiler, which is called once
    python jax_decode.py

A decoder of two layers with random weights. Both sequences begin with the same prompt, which is computed and stored
once. pagedcache owns the tables (``storage="metadata"``), JAX the memory.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pagedcache import CacheSpec, KVCache
from pagedcache.interop.jax import attend, copy_blocks, make_pools, step_arrays

LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2, 4, 2, 16, 64
HIDDEN = HEADS * HEAD_DIM
SPEC = CacheSpec(layers=LAYERS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=4)


def random_weights(seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 7 * LAYERS + 2))

    def matrix(*shape):
        return jax.random.normal(next(keys), shape) / 4

    wide = KV_HEADS * HEAD_DIM
    layers = [
        {"q": matrix(HIDDEN, HIDDEN), "k": matrix(HIDDEN, wide), "v": matrix(HIDDEN, wide), "o": matrix(HIDDEN, HIDDEN)}
        | {"up": matrix(HIDDEN, 4 * HIDDEN), "down": matrix(4 * HIDDEN, HIDDEN)}
        for _ in range(LAYERS)
    ]
    return {"embedding": matrix(VOCAB, HIDDEN), "head": matrix(HIDDEN, VOCAB), "layers": layers}


def rotate(x, positions):
    angles = positions[:, None] * 10000.0 ** (-jnp.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    left, right = jnp.split(x, 2, -1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


@functools.partial(jax.jit, donate_argnames="pools", static_argnames="attention")
def forward(weights, tokens, pools, arrays, attention=attend):
    """Logits of the last token of each sequence, and the pools, which are written in place."""
    x = weights["embedding"][tokens]
    done = []
    for layer, pair in zip(weights["layers"], pools, strict=True):
        k_pool, v_pool = (copy_blocks(pool, arrays.copies) for pool in pair)
        q, k, v = (jnp.reshape(x @ layer[name], (len(x), -1, HEAD_DIM)) for name in "qkv")
        q, k = rotate(q, arrays.positions), rotate(k, arrays.positions)
        attended, *pair = attention(q, k, v, k_pool, v_pool, arrays)
        x = x + jnp.reshape(attended, x.shape) @ layer["o"]
        x = x + jax.nn.relu(x @ layer["up"]) @ layer["down"]
        done.append(tuple(pair))
    return x[arrays.last] @ weights["head"], done


def run(cache, weights, ids, tokens, pools, attention):
    """One step: tokens [sequences, as many for each]; what comes next in each sequence, and the pools."""
    counts = tokens.shape[1]
    step = cache.extend(ids, counts)
    arrays = step_arrays(step, sequences=2, width=16)  # the number of tokens becomes a power of two
    padded = np.zeros(len(arrays.slots), np.int32)
    padded[: tokens.size] = tokens.ravel()
    logits, pools = forward(weights, padded, pools, arrays, attention)
    cache.commit(step, tokens.ravel())
    return np.asarray(logits)[: len(ids)].argmax(1), pools


def generate(weights, prompt, endings, new_tokens, attention=attend):
    """Go on from a prompt with two endings; the tokens of each."""
    cache = KVCache(SPEC, num_blocks=64, storage="metadata")
    pools = make_pools(SPEC, cache.num_blocks)
    at = [pool.unsafe_buffer_pointer() for pair in pools for pool in pair]
    parent = cache.admit([prompt]).ids
    _, pools = run(cache, weights, parent, np.array([prompt]), pools, attention)
    ids = np.concatenate([parent, cache.fork(parent)[0]])
    tokens, texts = np.array(endings), []
    for _ in range(new_tokens):
        tokens, pools = run(cache, weights, ids, tokens[:, None], pools, attention)
        texts.append(tokens)
    stayed = at == [pool.unsafe_buffer_pointer() for pair in pools for pool in pair]
    print(f"{cache.stats().used} blocks, {cache.stats().shared} of them shared; K and V stayed in place: {stayed}")
    return np.stack(texts, 1).tolist()


if __name__ == "__main__":
    for text in generate(random_weights(), prompt=[3, 1, 4, 1, 5, 9, 2, 6, 5], endings=[3, 7], new_tokens=12):
        print(text)
