"""JAX over a paged cache: attention is KVCache's, pools stay in place, and steps of one size are one program."""

import os

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache
from pagedcache.interop.jax import (
    _handler,
    attend,
    copy_blocks,
    gather_attend,
    make_pools,
    move_slots,
    step_arrays,
    write,
)

jax = pytest.importorskip("jax")
pytest.importorskip("ml_dtypes")
jnp = jax.numpy

BLOCKS, KV_HEADS, HEAD_DIM = 24, 2, 16
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE)


@pytest.fixture(scope="module", autouse=True)
def c_compiler():
    try:
        return _handler.compiler()
    except RuntimeError as reason:
        pytest.skip(str(reason))


def spec_of(dtype="float32"):
    return CacheSpec(layers=1, kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=4, dtype=dtype)


def tables(dtype="float32", **more):
    return KVCache(spec_of(dtype), num_blocks=BLOCKS, storage="metadata", **more)


def numbers(seed, tokens, dtype="float32", rows=None):
    """q, k and v of new tokens, with NaN in the rows that only fill up to `rows`."""
    rng = np.random.default_rng(seed)
    made = []
    for heads in (4, KV_HEADS, KV_HEADS):
        array = np.full((rows or tokens, heads, HEAD_DIM), np.nan, np.float32)
        array[:tokens] = rng.standard_normal((tokens, heads, HEAD_DIM))
        made.append(jnp.asarray(array, dtype))
    return made


def addresses(*arrays):
    return [array.unsafe_buffer_pointer() for array in arrays]


def wide(array):
    return np.asarray(array, np.float32)


@each_dtype
@pytest.mark.parametrize("options", [{}, {"window": 3, "sink_tokens": 1}, {"softcap": 2.0, "scale": 0.5}], ids=str)
def test_attention_is_that_of_the_cache(dtype, options):
    """Prompts of two sequences, then a token of each: the kernel in XLA, JAX alone, and KVCache.attend."""
    ours, theirs = KVCache(spec_of(dtype), num_blocks=BLOCKS), tables(dtype)
    prompts = [range(5), range(20, 29)]
    ids, others = ours.admit(prompts).ids, theirs.admit(prompts).ids
    pools = {function: make_pools(spec_of(dtype), BLOCKS)[0] for function in (attend, gather_attend)}
    for seed, counts in enumerate([[5, 9], [1, 1]]):
        step, arrays = ours.extend(ids, counts), step_arrays(theirs.extend(others, counts))
        q, k, v = numbers(seed, sum(counts), dtype, len(arrays.slots))
        n = sum(counts)
        q_, k_, v_ = (np.asarray(array)[:n] for array in (q, k, v))
        ours.backend.write(ours.storage, 0, k_, v_, step.slots)
        expected = ours.backend.attend(ours.storage, 0, q_, step, **options)
        for function, (k_pool, v_pool) in pools.items():
            out, *pools[function] = jax.jit(lambda *a, f=function: f(*a, **options))(q, k, v, k_pool, v_pool, arrays)
            assert np.abs(wide(out)[:n] - wide(expected)).max() < TOLERANCE[dtype]
            assert not wide(out)[n:].any()
        ours.commit(step, np.arange(n))
        theirs.commit(theirs.open_steps[0], np.arange(n))


@each_dtype
@pytest.mark.parametrize("function", [attend, gather_attend])
def test_donated_pools_stay_where_they_are(function, dtype):
    """In place: the results are at the addresses of what was given; the zero block stays zero."""
    cache = tables(dtype)
    arrays = step_arrays(cache.extend(cache.admit([range(9)]).ids, 9))
    ((k_pool, v_pool),) = make_pools(spec_of(dtype), BLOCKS)
    before = addresses(k_pool, v_pool)
    step = jax.jit(function, donate_argnums=(3, 4))
    q, k, v = numbers(0, 9, dtype, 16)
    for _ in range(3):
        _, k_pool, v_pool = step(q, k, v, k_pool, v_pool, arrays)
        assert addresses(k_pool, v_pool) == before
    assert not wide(k_pool)[0].any() and not wide(v_pool)[0].any()
    assert np.array_equal(np.asarray(k_pool).reshape(-1, KV_HEADS, HEAD_DIM)[arrays.slots[:9]], np.asarray(k)[:9])


def test_pools_that_are_not_donated_are_kept():
    cache = tables()
    arrays = step_arrays(cache.extend(cache.admit([range(4)]).ids, 4))
    ((k_pool, v_pool),) = make_pools(spec_of(), BLOCKS)
    _, new, _ = jax.jit(attend)(*numbers(0, 4), k_pool, v_pool, arrays)
    assert not wide(k_pool).any() and wide(new).any()


def test_two_layers_in_one_program_stay_in_place():
    cache = tables()
    arrays = step_arrays(cache.extend(cache.admit([range(4)]).ids, 4))
    pools = [make_pools(spec_of(), BLOCKS)[0] for _ in range(2)]
    before = [addresses(*pair) for pair in pools]

    def both(q, k, v, pools, arrays):
        done = []
        for k_pool, v_pool in pools:
            q, *pair = attend(q, k, v, copy_blocks(k_pool, arrays.copies), copy_blocks(v_pool, arrays.copies), arrays)
            done.append(pair)
        return q, done

    _, pools = jax.jit(both, donate_argnums=3)(*numbers(0, 4), pools, arrays)
    assert [addresses(*pair) for pair in pools] == before


def test_decode_steps_are_one_program():
    """Whatever the number of tokens, sequences and blocks, as long as the sizes are those asked for."""
    cache, traced = tables(), []
    (pair,) = make_pools(spec_of(), BLOCKS)

    @jax.jit
    def forward(q, k, v, k_pool, v_pool, arrays):
        traced.append(1)
        return attend(q, k, v, k_pool, v_pool, arrays)

    ids = cache.admit([range(5), range(20, 29), range(40, 43)]).ids
    for count, live in enumerate([1, 3, 2, 2, 1], 3):
        step = cache.extend(ids[:live], count)
        arrays = step_arrays(step, tokens=32, sequences=4, width=8)
        _, *pair = forward(*numbers(0, 32), *pair, arrays)
        cache.commit(step, np.arange(count * live))
    assert len(traced) == 1


def test_sizes_that_are_too_small_are_refused():
    cache = tables()
    step = cache.extend(cache.admit([range(9), range(2)]).ids, [9, 2])
    for name, least in {"tokens": 11, "sequences": 2, "width": 3}.items():
        with pytest.raises(ValueError, match=f"{name} is {least - 1}, and the step has {least}"):
            step_arrays(step, **{name: least - 1})


def test_rows_that_fill_up_write_nothing():
    cache = tables()
    arrays = step_arrays(cache.extend(cache.admit([range(3)]).ids, 3), tokens=8)
    pool = write(make_pools(spec_of(), BLOCKS)[0][0], jnp.ones((8, KV_HEADS, HEAD_DIM)), arrays.slots)
    assert wide(pool).sum() == 3 * KV_HEADS * HEAD_DIM


def test_a_fork_parts_by_a_copy():
    """Copy-on-write is the program's to do, before anything is written."""
    cache = tables()
    parent = cache.admit([range(6)]).ids
    arrays = step_arrays(cache.extend(parent, 6))
    ((pool, _),) = make_pools(spec_of(), BLOCKS)
    pool = write(pool, jnp.arange(8.0)[:, None, None] + jnp.ones((8, KV_HEADS, HEAD_DIM)), arrays.slots)
    cache.commit(cache.open_steps[0], range(6))
    child = cache.fork(parent)[0]
    arrays = step_arrays(cache.extend(child, 1))
    assert len(arrays.copies) == 1
    pool = jax.jit(copy_blocks, donate_argnums=0)(pool, arrays.copies)
    table = arrays.block_tables[0]
    assert np.asarray(pool[table, :, 0, 0]).ravel()[:6].tolist() == [1, 2, 3, 4, 5, 6]
    assert arrays.copies[0, 1] == table[1]


def test_accepted_tokens_move():
    ((pool, _),) = make_pools(spec_of(), BLOCKS)
    pool = write(pool, jnp.full((1, KV_HEADS, HEAD_DIM), 3.0), np.array([9]))
    moved = jax.jit(move_slots, donate_argnums=0)(pool, np.array([9]), np.array([6]))
    assert np.asarray(moved)[1, 2, 0, 0] == 3


# -- what is refused ------------------------------------------------------------------------------------------


def test_a_block_that_is_not_there_is_refused():
    cache = tables()
    arrays = step_arrays(cache.extend(cache.admit([range(5)]).ids, 5))
    wrong = arrays._replace(block_tables=arrays.block_tables + BLOCKS)
    ((k_pool, v_pool),) = make_pools(spec_of(), BLOCKS)
    with pytest.raises(Exception, match=rf"block_tables\[0, 0\] is {BLOCKS + arrays.block_tables[0, 0]}"):
        jax.block_until_ready(attend(*numbers(0, 8), k_pool, v_pool, wrong))


def test_a_slot_that_is_not_there_is_refused():
    cache = tables()
    arrays = step_arrays(cache.extend(cache.admit([range(4)]).ids, 4))
    ((k_pool, v_pool),) = make_pools(spec_of(), BLOCKS)
    with pytest.raises(Exception, match=r"slots\[0\] is 0"):
        jax.block_until_ready(attend(*numbers(0, 4), k_pool, v_pool, arrays._replace(slots=arrays.slots % 4)))


def test_more_tokens_than_rows_are_refused():
    cache = tables()
    arrays = step_arrays(cache.extend(cache.admit([range(4)]).ids, 4))
    ((k_pool, v_pool),) = make_pools(spec_of(), BLOCKS)
    with pytest.raises(Exception, match="qo_indptr names more tokens than q has"):
        jax.block_until_ready(attend(*numbers(0, 2), k_pool, v_pool, arrays._replace(slots=arrays.slots[:2])))


@pytest.mark.parametrize(("given", "what"), [({"window": 0}, "window is 0"), ({"precision": "fast"}, "precision is")])
def test_options_that_are_none(given, what):
    cache = tables()
    arrays = step_arrays(cache.extend(cache.admit([range(4)]).ids, 4))
    with pytest.raises(ValueError, match=what):
        attend(*numbers(0, 4), *make_pools(spec_of(), BLOCKS)[0], arrays, **given)


def test_no_pools_of_other_dtypes():
    with pytest.raises(ValueError, match="dtype is int8"):
        make_pools(spec_of("int8"), BLOCKS)


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("PAGEDCACHE_CC", "CC"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="there is no C compiler: install gcc"):
        _handler.compiler()
    monkeypatch.setenv("PAGEDCACHE_CC", "nonesuch -O2")
    with pytest.raises(RuntimeError, match="PAGEDCACHE_CC names a C compiler that is not there: nonesuch"):
        _handler.compiler()


def test_the_handler_is_built_once(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGEDCACHE_CACHE_DIR", str(tmp_path))
    built = _handler.build(jax.ffi.include_dir(), "one")
    assert _handler.build(jax.ffi.include_dir(), "one") == built
    assert _handler.build(jax.ffi.include_dir(), "another") != built
    assert len(os.listdir(tmp_path / "jax")) == 2


def test_a_source_that_does_not_compile_is_told_of(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGEDCACHE_CACHE_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"the compiler refuses attend\.c"):
        _handler.build(str(tmp_path), "without headers")
    assert os.listdir(tmp_path / "jax") == []
