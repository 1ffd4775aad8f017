"""Layers that read the K and V of another: they cost nothing, and attend as the other sees."""

import dataclasses
import pickle

import numpy as np
import pytest
from hybrid_drive import DIM, Q_HEADS, attention, kv_of, sees

from pagedcache import CacheSpec, KVCache, LayerGroup
from pagedcache.backends import get
from pagedcache.testing.scenes import tolerance

GROUPS = [LayerGroup(2), LayerGroup(2, "sliding_window", window=5)]
SHARED = {2: 0, 5: 3, 6: 3}  # layers 0 and 1 are full, 3 and 4 slide


def make_spec(shared=SHARED, layers=7, groups=GROUPS, **options):
    options = {"max_step_tokens": 8, "block_size": 4} | options
    return CacheSpec(layers, 1, DIM, groups=groups, shared_layers=shared, **options)


def test_they_cost_nothing():
    spec, alone = make_spec(), make_spec({}, 4)
    for name in ("planes", "bytes_per_token", "bytes_per_block", "num_groups"):
        assert getattr(spec, name) == getattr(alone, name)
    assert spec.blocks_per_sequence(40) == alone.blocks_per_sequence(40)
    assert spec.explain().splitlines() == [*alone.explain().splitlines(), "3 more layers read the K and V of these"]
    one = CacheSpec(6, 1, DIM, shared_layers={4: 2, 5: 3})
    assert (one.planes, one.groups[0].layers, list(one.kv_layers)) == (4, 4, [0, 1, 2, 3])


def test_where_they_are():
    spec = make_spec()
    assert [spec.locate(layer) for layer in range(7)] == [(0, 0), (0, 1), (0, 0), (1, 0), (1, 1), (1, 0), (1, 0)]
    assert list(spec.kv_layers) == [0, 1, 3, 4] and spec.record_nbytes(6) == spec.record_nbytes(3)
    first = make_spec({0: 2}, 5)  # in whatever order: the numbers that are left go group by group
    assert [first.locate(layer) for layer in range(5)] == [(0, 1), (0, 0), (0, 1), (1, 0), (1, 1)]
    states = make_spec({2: 1}, 4, [LayerGroup(2), LayerGroup(1, "state", state_nbytes=9)])
    assert [states.place(layer) for layer in range(4)] == [(0, 0), (0, 1), (0, 1), (1, 0)]


def test_a_spec_stays_what_it_is():
    spec = make_spec()
    assert spec == pickle.loads(pickle.dumps(spec)) == make_spec(SHARED.items()) != make_spec({2: 0, 5: 3, 6: 4})
    assert hash(spec) == hash(make_spec())
    assert dataclasses.replace(spec, dtype="float16").shared_layers == ((2, 0), (5, 3), (6, 3))


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        ({2: 0, 5: 3, 7: 3}, "a layer of shared_layers is 7; it must be at most 6"),
        ({2: 0, 5: 3, 6: -1}, "a layer of shared_layers is -1"),
        ({2: 0, 5: 3, 6: 5}, "layer 6 reads K and V of layer 5, which has none of its own"),
        ({2: 0, 5: 3, 6: 6}, "layer 6 reads K and V of layer 6"),
        ([(2, 0), (5, 3), (5, 4)], "names a layer twice"),
        ({2: 0}, "the groups have 4 layers together; the spec says layers=7 less 1 that share K and V"),
    ],
)
def test_layers_that_cannot_share(shared, message):
    with pytest.raises(ValueError, match=message):
        make_spec(shared)


def test_a_state_is_not_shared():
    with pytest.raises(ValueError, match="layer 3 is of group 'state': it has a state, no K and V"):
        make_spec({2: 3}, 4, [LayerGroup(2), LayerGroup(1, "state", state_nbytes=9)])
    with pytest.raises(TypeError, match="a layer of shared_layers is 'a'"):
        make_spec({2: "a"})


def expected(q, layer, tokens, count, window):
    """Dense attention of the last `count` tokens over the K and V that `layer` stored."""
    places = np.arange(len(tokens))
    group = LayerGroup(1) if window is None else LayerGroup(1, "sliding_window", window=window)
    seen = np.array([[key <= query and sees(group, query, key) for key in places] for query in places[-count:]])
    return attention(q, *kv_of(layer, tokens, places), seen)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("groups", [GROUPS, [LayerGroup(4)]], ids=["two groups", "one group"])
def test_they_attend_to_what_the_other_stored(backend, groups):
    with KVCache(make_spec(groups=groups), num_blocks=60, backend=backend) as cache:
        rng, tokens = np.random.default_rng(3), []
        [sid] = cache.admit([list(range(20))]).ids.tolist()
        for new in ([1, 2, 3, 4, 5, 6, 7], [8], [9, 10, 11], [12]):
            step = cache.extend([sid], [len(new)])
            tokens += new
            for layer in range(7):
                q = rng.standard_normal((len(new), Q_HEADS, DIM)).astype(np.float32)
                k, v = (None, None) if layer in SHARED else kv_of(layer, new, step.positions)
                out = cache.attend(layer, q, k, v, step)
                window = 5 if len(groups) == 2 and layer >= 3 else None
                dense = expected(q, SHARED.get(layer, layer), tokens, len(new), window)
                assert np.abs(out - dense).max() <= 4 * tolerance(cache.backend, "float32")
            cache.commit(step, new)
            cache.swap_out([sid])
            cache.swap_in([sid])
        cache.check()


@pytest.mark.parametrize("groups", [GROUPS, [LayerGroup(4)]], ids=["two groups", "one group"])
def test_nothing_is_stored_for_them(groups):
    with KVCache(make_spec(groups=groups), num_blocks=60) as cache:
        step = cache.extend(cache.admit([[1, 2]]).ids, [2])
        q, kv = np.ones((2, Q_HEADS, DIM), np.float32), np.ones((2, 1, DIM), np.float32)
        with pytest.raises(
            ValueError, match=r"layer 5 reads K and V of layer 3 \(shared_layers\): give None for k and v"
        ):
            cache.attend(5, q, kv, kv, step)
        assert not any(array.any() for plane in cache.storage.export() for array in plane)


@pytest.mark.parametrize("name", ["numpy", "cpu"])
def test_records_are_of_layers_that_store(name):
    backend, spec = get(name), make_spec()
    storage = backend.allocate(spec, 3)
    data = np.random.default_rng(0).integers(0, 256, (1, 2, spec.record_nbytes(0))).astype(np.uint8)
    backend.write_blocks(storage, [2], data, [3, 4])
    np.testing.assert_array_equal(backend.read_blocks(storage, [2], [6, 4]), data)
    np.testing.assert_array_equal(backend.read_blocks(storage, [2]), data[:, [0, 1, 0, 1]])  # layers 0, 1, 3, 4
