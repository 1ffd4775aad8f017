"""Partial hits with their bytes: what is computed after one is what would be computed without a prefix cache."""

import numpy as np
import pytest
from kv_drive import DIM, HEADS, LAYERS, Rows, make_cache

PROMPT = list(range(20, 36))  # four blocks of four
DTYPES = ["float32", "float16", "int8"]


def draw(tokens, layer):
    """K and V of tokens, by their ids: random, so that rounding and scales matter."""
    rows = [np.random.default_rng((token, layer)).standard_normal((2, HEADS, DIM)) for token in tokens]
    k, v = np.asarray(rows, np.float32).reshape(-1, 2, HEADS, DIM).swapaxes(0, 1)
    return np.ascontiguousarray(k), np.ascontiguousarray(v)


def run(cache, sid, tokens):
    """Outputs of all layers for a step of these tokens, committed."""
    step, outs = cache.extend([sid], [len(tokens)]), []
    for layer in range(LAYERS):
        q = np.random.default_rng(layer).standard_normal((len(tokens), 2 * HEADS, DIM)).astype(np.float32)
        outs.append(cache.attend(layer, q, *draw(tokens, layer), step))
    cache.commit(step, tokens)
    return np.stack(outs)


def stored(cache, sid):
    """Every byte of the sequence: K, V and scales of all layers."""
    sequence = cache.sequence(sid)
    at = np.arange(sequence.length)
    blocks, offsets = sequence.block_table[at // 4], at % 4
    arrays = [array for layer in range(LAYERS) for array in cache.storage.view(layer)]
    for layer in range(LAYERS):
        arrays += cache.storage.scales(layer) or ()
    return [np.ascontiguousarray(array[blocks, offsets]).tobytes() for array in arrays]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("length", range(2, 17))
def test_hit_and_miss_agree_bit_for_bit(backend, dtype, length):
    """The last token of a prompt, and three more, over a prefix that was found and one that was computed."""
    outs, bytes_of = [], []
    for is_known in (True, False):
        with make_cache(dtype=dtype, backend=backend) as cache:
            if is_known:
                [sid] = cache.admit([PROMPT]).ids
                run(cache, sid, PROMPT)
                cache.release([sid])
            admission = cache.admit([PROMPT[:length]])
            [sid], [found] = admission.ids.tolist(), admission.cached.tolist()
            assert found == (length - 1 if is_known else 0)
            if not is_known:
                run(cache, sid, PROMPT[: length - 1])
            outs.append([run(cache, sid, tokens) for tokens in ([PROMPT[length - 1]], [7], [8, 9])])
            bytes_of.append(stored(cache, sid))
            cache.check()
    for hit, miss in zip(*outs, strict=True):
        np.testing.assert_array_equal(hit, miss)
    assert bytes_of[0] == bytes_of[1]


@pytest.fixture(params=["NHD", "HND"])
def rows(request):
    with make_cache(num_blocks=20, dtype="float16", layout=request.param) as cache:
        rows = Rows(cache)
        rows.admit([*PROMPT, 1])
        yield rows


@pytest.mark.parametrize("at", range(16))
def test_what_is_shared_stays_as_it_was(rows, at):
    """Prompts part within every block; neither the known sequence nor each other's tokens change."""
    for token in (100, 101):
        sid = rows.admit([*PROMPT[:at], token, token])
        rows.run({sid: [token + 10] * 5})
        kid = rows.fork(sid, at=max(0, at - 1))
        rows.run({sid: [2], kid: [token + 20] * 3})
    rows.verify()


def test_abandoned_and_tried_again(rows):
    admission = rows.cache.admit([[*PROMPT[:14], 100, 101]])
    [sid] = admission.ids.tolist()
    rows.tokens[sid] = PROMPT[:14]
    rows.verify()
    for new in ([110], [111, 112, 113]):
        step = rows.cache.extend([sid], len(new))
        rows.write(step, new)
        rows.cache.abandon(step)
        rows.verify()
    rows.run({sid: [100, 101]})
    rows.verify()


def test_swapped_and_compacted_in_between(rows):
    admission = rows.cache.admit([[*PROMPT[:14], 100, 101], [*PROMPT[:6], 102]])
    for sid, at in zip(admission.ids.tolist(), (14, 6), strict=True):
        rows.tokens[sid] = PROMPT[:at]
    known = next(iter(rows.tokens))
    rows.release(known)  # what is shared is held in part, or by both
    ids = admission.ids.tolist()
    rows.cache.swap_out(ids)
    rows.overwrite()
    rows.cache.swap_in(ids)
    rows.cache.compact()
    rows.verify()
    rows.run({ids[0]: [100, 101], ids[1]: [102]})
    rows.verify()
