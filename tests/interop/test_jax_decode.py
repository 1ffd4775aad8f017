"""docs/examples/jax_decode.py computes what its model says: with the kernel, in JAX alone, and without any cache."""

import numpy as np
import pytest

from pagedcache.interop.jax import _handler, attend, gather_attend

jax = pytest.importorskip("jax")
jnp = jax.numpy
PROMPT, ENDINGS = [3, 1, 4, 1, 5, 9, 2, 6, 5], [3, 7]


@pytest.fixture(scope="module", autouse=True)
def c_compiler():
    try:
        return _handler.compiler()
    except RuntimeError as reason:
        pytest.skip(str(reason))


def dense_logits(model, weights, tokens):
    """Logits of the last token, all of them computed at once."""
    n = len(tokens)
    x = weights["embedding"][jnp.array(tokens)]
    for layer in weights["layers"]:
        q, k, v = ((x @ layer[name]).reshape(n, -1, model.HEAD_DIM) for name in "qkv")
        q, k = (model.rotate(array, jnp.arange(n)) for array in (q, k))
        k, v = (jnp.repeat(array, model.HEADS // model.KV_HEADS, 1) for array in (k, v))
        scores = jnp.einsum("ihd,jhd->hij", q, k) / model.HEAD_DIM**0.5
        weight = jax.nn.softmax(jnp.where(jnp.tri(n, dtype=bool), scores, -jnp.inf))
        x = x + jnp.einsum("hij,jhd->ihd", weight, v).reshape(x.shape) @ layer["o"]
        x = x + jax.nn.relu(x @ layer["up"]) @ layer["down"]
    return x[-1] @ weights["head"]


def test_decoding_is_that_without_a_cache(example, capsys):
    model = example("jax_decode")
    weights = model.random_weights()
    texts = model.generate(weights, PROMPT, ENDINGS, 6)
    assert "stayed in place: True" in capsys.readouterr().out
    for first, text in zip(ENDINGS, texts, strict=True):
        tokens = [*PROMPT, first]
        for token in text:
            assert token == int(dense_logits(model, weights, tokens).argmax())
            tokens.append(token)


def test_both_attentions_find_the_same_tokens(example):
    model = example("jax_decode")
    weights = model.random_weights(1)
    texts = [model.generate(weights, PROMPT, ENDINGS, 8, attention) for attention in (attend, gather_attend)]
    assert np.array_equal(*texts)
