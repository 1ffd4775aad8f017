"""A plan is what the library then allocates, to the block and to the byte."""

import pytest

from pagedcache import AdmitStatus, CacheSpec, KVCache
from pagedcache.sizing import ModelShape, plan_memory


def arrays(cache):
    for layer in range(cache.spec.layers):
        yield from cache.storage.view(layer)
        if cache.spec.has_scales:
            yield from cache.storage.scales(layer)


@pytest.mark.parametrize("block_size", [1, 16, 100])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float8_e4m3"])
def test_what_a_cache_really_has(dtype, block_size):
    shape = ModelShape(layers=3, q_heads=4, kv_heads=2, head_dim=16, v_head_dim=8)
    plan = plan_memory(shape.cache_spec(dtype=dtype, block_size=block_size), "300 kB", [150], max_length=200)
    with KVCache(plan.spec, memory=plan.memory) as cache:
        assert cache.num_blocks == plan.num_blocks
        assert sum(array.nbytes for array in arrays(cache)) == plan.pool_nbytes <= plan.memory
        (room,) = plan.rooms
        status = cache.admit([[number] * 150 for number in range(room.sequences + 1)]).status.tolist()
        assert status == [AdmitStatus.ADMITTED] * room.sequences + [AdmitStatus.NOT_NOW]
        assert cache.stats().used == room.sequences * room.blocks


def test_one_more_block_would_not_fit():
    spec = CacheSpec(2, 1, 8)
    plan = plan_memory(spec, spec.pool_nbytes(10) - 1, [], max_length=1)
    assert plan.num_blocks == 9
    assert plan.pool_nbytes == plan.memory + 1 - spec.bytes_per_block


def test_contiguous_cache_in_the_same_memory():
    spec = CacheSpec(2, 1, 8)
    memory = 3 * 100 * spec.bytes_per_token
    assert plan_memory(spec, memory, [], max_length=100).contiguous_sequences == 3
    assert plan_memory(spec, memory - 1, [], max_length=100).contiguous_sequences == 2


@pytest.mark.parametrize(("lengths", "max_length", "message"), [([0], 1, "length is 0"), ([1], 0, "max_length is 0")])
def test_lengths_that_are_refused(lengths, max_length, message):
    with pytest.raises(ValueError, match=message):
        plan_memory(CacheSpec(1, 1, 8), "1 MiB", lengths, max_length=max_length)
