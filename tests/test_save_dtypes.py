"""Saved blocks in a cache of another dtype: rounded as a store of the same values would be."""

import numpy as np
import pytest
from saved_drive import DTYPES, PROMPT, make_cache, random_rows, records_of

from pagedcache import KVCache
from pagedcache.errors import ForeignFormat
from pagedcache.testing import rounded

PAIRS = [(source, target) for source in DTYPES for target in DTYPES if source != target]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.kv"


def kept(source):
    """What a cache of this dtype has of random K/V: float32 of each layer, K and V."""
    found, random = [], np.random.default_rng(0)
    for _ in range(2):
        _, k, v = random.standard_normal((3, len(PROMPT), 2, 4)).astype(np.float32)
        found += [rounded(k, source).astype(np.float32), rounded(v, source).astype(np.float32)]
    return [values + 0.0 for values in found] if source == "int8" else found  # whose codes know no -0


def stored(values, dtype):
    """Bytes that a cache of this dtype has after a store of these values."""
    cache = make_cache(backend="numpy", dtype=dtype)
    [sid] = cache.admit([PROMPT]).ids.tolist()
    step = cache.extend([sid], len(PROMPT))
    for layer in range(2):
        cache.backend.write(cache.storage, layer, values[2 * layer], values[2 * layer + 1], step.slots)
    cache.commit(step, PROMPT)
    return records_of(cache, sid)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_conversion_is_what_a_store_would_do(path, source, target):
    cache = make_cache(dtype=source)
    cache.save(path, [random_rows(cache, PROMPT)])
    again, [sid] = KVCache.load(path, dtype=target)
    assert again.spec.dtype == target and records_of(again, sid) == stored(kept(source), target)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_there_and_back_is_exact_where_it_can_be(path, dtype):
    cache = make_cache(dtype=dtype)
    sid = random_rows(cache, PROMPT)
    cache.save(path, [sid])
    wide, [other] = KVCache.load(path, dtype="float32")
    wide.save(path, [other])
    back, [last] = KVCache.load(path, dtype=dtype)
    assert records_of(back, last) == records_of(cache, sid)


def test_restore_converts_only_when_asked(path):
    cache = make_cache(dtype="float16")
    cache.save(path, [random_rows(cache, PROMPT)])
    other = make_cache()
    with pytest.raises(ForeignFormat, match="dtype 'float16'; this cache has 'float32'"):
        other.restore(path)
    [sid] = other.restore(path, convert=True)
    assert records_of(other, sid) == stored(kept("float16"), "float32")


def test_large_values_become_infinite_or_are_refused(path):
    cache = make_cache()
    [sid] = cache.admit([[1, 2]]).ids.tolist()
    step = cache.extend([sid], 2)
    cache.attend(0, np.ones((2, 2, 4), np.float32), *np.full((2, 2, 2, 4), 1e30, np.float32), step)
    cache.commit(step, [1, 2])
    cache.save(path, [sid])
    half, [other] = KVCache.load(path, dtype="float16")
    assert records_of(half, other)[0] == np.full(16, np.inf, np.float16).tobytes()
    half.save(path, [other])
    eight = make_cache(dtype="int8")
    with pytest.raises(ValueError, match="K holds nan or inf"):
        eight.restore(path, convert=True)
    assert eight.stats().used == 0 and eight.stats().sequences == 0


def test_slots_that_hold_nothing_are_no_obstacle(path):
    """What lies in them may be anything; it is neither saved nor converted."""
    cache = make_cache()
    for array in (array for pair in cache.storage.export(writable=True) for array in pair):
        array[1:] = np.nan
    cache.save(path, [random_rows(cache, PROMPT)])
    again, [sid] = KVCache.load(path, dtype="int8")
    assert records_of(again, sid) == stored(kept("float32"), "int8")


def test_float8_e5m2_is_not_converted(path, cxx):
    cache = make_cache(dtype="float8_e5m2", backend="cuda-emulated")
    sid = random_rows(cache, PROMPT)
    cache.save(path, [sid])
    again, [other] = KVCache.load(path, backend="cuda-emulated")
    assert records_of(again, other) == records_of(cache, sid)
    with pytest.raises(ForeignFormat, match="'float8_e5m2' is not converted"):
        KVCache.load(path, dtype="float32")
