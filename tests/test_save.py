"""KVCache.save, restore and load: sequences come back as they were, on any backend, in any layout."""

import contextlib
import threading

import numpy as np
import pytest
from kv_drive import Rows
from saved_drive import DTYPES, PROMPT, decode, make_cache, random_rows, records_of, rows_of

from pagedcache import InvalidSequence, KVCache, StepOpen, SwappedOut
from pagedcache.testing import DelayedBackend

PAIRS = [(dtype, *pair) for dtype in DTYPES for pair in (("cpu", "numpy"), ("numpy", "cpu"))]
PAIRS += [("float16", "cpu", "cuda-emulated"), ("int8", "cuda-emulated", "numpy")]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.kv"


@pytest.mark.parametrize(("dtype", "source", "target"), PAIRS)
def test_bits_go_from_backend_to_backend(request, path, dtype, source, target):  # R03, T02
    if "cuda-emulated" in (source, target):
        request.getfixturevalue("cxx")
    cache = make_cache(backend=source, dtype=dtype)
    sid = random_rows(cache, PROMPT)
    before = records_of(cache, sid)
    assert cache.save(path, [sid]) == 3
    again, [other] = KVCache.load(path, backend=target)
    assert again.spec == cache.spec and again.backend.name == target
    assert records_of(again, other) == before and again.sequence(other).position == len(PROMPT)
    assert again.match([[*PROMPT, 1]])[0] == cache.match([[*PROMPT, 1]])[0] == 8
    again.check()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize(("source", "target"), [("NHD", "HND"), ("HND", "NHD"), ("HND", "HND")])
def test_bits_go_from_layout_to_layout(path, dtype, source, target):
    cache = make_cache(layout=source, dtype=dtype)
    sid = random_rows(cache, PROMPT)
    cache.save(path, [sid])
    again, [other] = KVCache.load(path, layout=target)
    assert again.spec.layout == target and records_of(again, other) == records_of(cache, sid)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_going_on_is_as_if_never_interrupted(path, backend):  # R03
    cache = make_cache(backend=backend)
    sid = random_rows(cache, PROMPT)
    cache.save(path, [sid])
    again, [other] = KVCache.load(path, backend=backend)
    for turn, tokens in enumerate(([7], [8, 9], [5, 5, 5, 5, 5], [1])):
        np.testing.assert_array_equal(decode(again, other, tokens, turn), decode(cache, sid, tokens, turn))
    assert again.match([[*PROMPT, 7, 8, 9, 5, 5, 5]])[0] == 16
    again.check()


def test_several_come_back_in_the_order_asked_for(path):
    rows = Rows(make_cache())
    a, b, c = rows.admit(PROMPT), rows.admit([1, 2, 3, 4]), rows.admit([])
    rows.cache.save(path, [b, c, a])
    again, ids = KVCache.load(path)
    rows_of(again, dict(zip(ids, ([1, 2, 3, 4], [], PROMPT), strict=True))).verify()


def test_forks_share_again_and_are_written_once(path):
    rows = Rows(make_cache())
    a = rows.admit(PROMPT)
    b, c, d = rows.fork(a), rows.fork(a, at=10), rows.fork(a, at=8)
    rows.run({d: [60, 61]})
    assert rows.cache.save(path, [a, b, c, d]) == 4
    again, ids = KVCache.load(path)
    assert again.stats().used == 4 == rows.cache.stats().used
    other = rows_of(again, dict(zip(ids, (rows.tokens[sid] for sid in (a, b, c, d)), strict=True)))
    other.verify()
    other.run({int(sid): [70 + k] for k, sid in enumerate(ids)})
    other.verify()


def test_rows_within_a_shared_head(path):
    """A partial hit that was not copied yet: the rest of that block is another's."""
    rows = Rows(make_cache())
    rows.admit(PROMPT[:8])
    [sid] = rows.cache.admit([[*PROMPT[:6], 50, 51]]).ids.tolist()
    assert rows.cache.sequence(sid).position == 6
    rows.cache.save(path, [sid])
    again, [other] = KVCache.load(path)
    assert again.match([[*PROMPT[:8], 1]])[0] == 4  # the head of a block that is not full is nobody's
    resumed = rows_of(again, {other: PROMPT[:6]})
    resumed.run({int(other): [50, 51]})
    resumed.verify()


@pytest.mark.parametrize("pad", [0, 3, 6])
def test_unknown_tokens_and_pads_come_back_unpublished(path, pad):  # T08
    cache = make_cache()
    [sid] = cache.admit([PROMPT], pads=[pad]).ids.tolist()
    step = cache.extend([sid], [11])
    for layer in range(2):
        kv = np.random.default_rng(layer).standard_normal((2, 11, 2, 4)).astype(np.float32)
        cache.attend(layer, kv[0], *kv, step)
    cache.commit(step, None)
    kid = cache.fork([sid], at=9).item()
    cache.save(path, [kid, sid])
    again, [other_kid, other] = KVCache.load(path)
    assert records_of(again, other) == records_of(cache, sid)
    assert (again.sequence(other_kid).position, again.sequence(other_kid).length) == (9, 9 - pad)
    assert again.stats().used == cache.stats().used and again.stats().published == 0
    np.testing.assert_array_equal(decode(again, other, [1, 2]), decode(cache, sid, [1, 2]))
    again.check()


def test_forks_whose_tokens_are_not_known_share_again(path):
    """As of beams over padded prompts: what they have in common is there once."""
    cache = make_cache()
    [sid] = cache.admit([PROMPT], pads=[3]).ids.tolist()
    decode(cache, sid, PROMPT)
    kids = [sid, *cache.fork([sid], 2).ravel().tolist(), cache.fork([sid], at=9).item()]
    for k, kid in enumerate(kids):
        decode(cache, kid, [k] * (k + 1), k)
    assert cache.save(path, kids) == cache.stats().used
    again, ids = KVCache.load(path)
    assert again.stats().used == cache.stats().used and again.stats().shared == cache.stats().shared
    for old, new in zip(kids, ids.tolist(), strict=True):
        assert records_of(again, new) == records_of(cache, old)
    for old, new in zip(kids, ids.tolist(), strict=True):
        np.testing.assert_array_equal(decode(again, new, [9, 9, 9], old), decode(cache, old, [9, 9, 9], old))
    again.check()


def test_old_bytes_of_others_are_not_saved(path):
    rows = Rows(make_cache(num_blocks=3))
    rows.release(rows.admit([77] * 12))
    rows.cache.reset()
    [sid] = rows.cache.admit([[1, 2, 3, 4, 5]], pads=[2]).ids.tolist()
    step = rows.cache.extend([sid], 5)
    rows.write(step, [1, 2, 3, 4, 5])
    rows.cache.commit(step, [1, 2, 3, 4, 5])
    rows.cache.save(path, [sid])
    assert np.float32(77).tobytes() not in path.read_bytes() and np.int32(77).tobytes() not in path.read_bytes()


# ---- into a cache that is in use


def test_what_is_cached_is_shared(path):
    rows = Rows(make_cache())
    sid = rows.admit(PROMPT)
    rows.cache.save(path, [sid])
    [twin] = rows.cache.restore(path)
    assert rows.cache.stats().used == 4  # the last block, which is not full, is its own
    rows.tokens[int(twin)] = list(PROMPT)
    rows.run({sid: [60], int(twin): [61]})
    rows.verify()


def test_many_at_once_into_a_busy_cache(path):
    rows = Rows(make_cache())
    saved = [rows.admit(PROMPT), rows.admit(PROMPT[:5]), rows.admit([9] * 8)]
    rows.cache.save(path, saved)
    busy = Rows(make_cache(num_blocks=12))
    busy.admit([*PROMPT[:4], 3, 3])
    busy.release(busy.admit([8] * 20))
    ids = busy.cache.restore(path)
    busy.tokens.update({int(new): rows.tokens[old] for new, old in zip(ids, saved, strict=True)})
    busy.verify()
    busy.overwrite()
    busy.verify()


@pytest.mark.parametrize("late", [False, True])
def test_asynchronous_backends(path, late):
    """Bytes are read when they are there, and what waits for work is no obstacle."""
    cache, plain = make_cache(backend=DelayedBackend(late_arguments=late)), make_cache(backend="numpy")
    sid, same = random_rows(cache, PROMPT), random_rows(plain, PROMPT)
    cache.save(path, [sid])
    other = make_cache(backend=DelayedBackend(late_arguments=late), num_blocks=5)
    other.release([random_rows(other, [5] * 16)])
    [new] = other.restore(path)
    decode(other, new, [7, 8])
    decode(plain, same, [7, 8])
    other.synchronize()
    other.save(path, [new])
    again, [last] = KVCache.load(path)
    assert records_of(again, last) == records_of(plain, same)
    other.check()


def test_what_is_not_at_rest_is_refused(path):
    rows = Rows(make_cache())
    a, b = rows.admit(PROMPT), rows.admit([1, 2, 3])
    step = rows.cache.extend([a], [1])
    rows.cache.swap_out([b])
    for ids, error in (([a], StepOpen), ([b], SwappedOut), ([a + 77], InvalidSequence), ([b, b], ValueError)):
        with pytest.raises(error):
            rows.cache.save(path, ids)
    assert list(path.parent.iterdir()) == []
    rows.cache.abandon(step)
    rows.cache.swap_in([b])
    rows.cache.save(path, [a, b])


def test_what_cannot_be_saved_at_all(path):
    for cache, error in (
        (make_cache(fingerprint=None), "no fingerprint"),
        (make_cache(storage="metadata"), "metadata only"),
    ):
        with pytest.raises(ValueError, match=error):
            cache.save(path)


def test_metadata_only_caches_have_no_place_for_it(path):
    rows = Rows(make_cache())
    rows.cache.save(path, [rows.admit(PROMPT)])
    with pytest.raises(ValueError, match="metadata only"):
        make_cache(storage="metadata").restore(path)


def test_saving_while_another_thread_decodes(path):
    """Each file holds the sequence as it was at some moment between two steps."""
    rows = Rows(make_cache(num_blocks=120))
    sid = rows.admit(PROMPT)
    text = [k % 400 for k in range(200)]

    def decode_all():
        for token in text:
            rows.run({sid: [token]})

    thread = threading.Thread(target=decode_all)
    thread.start()
    lengths = []
    for _ in range(10):
        with contextlib.suppress(StepOpen):  # between extend and commit
            rows.cache.save(path, [sid])
            cache, [other] = KVCache.load(path, num_blocks=60)
            lengths.append(cache.sequence(other).length)
            rows_of(cache, {other: [*PROMPT, *text][: lengths[-1]]}).verify()
    thread.join()
    assert lengths == sorted(lengths)
    rows.verify()
