"""CacheSpec with layers that keep a state: what it costs, and which groups are refused."""

import dataclasses
import pickle

import pytest

from pagedcache.spec import CacheSpec, LayerGroup

FULL = LayerGroup(2)


def make_spec(*groups, **options):
    return CacheSpec(sum(group.layers for group in groups), 1, 8, block_size=4, groups=groups, **options)


def state(layers=3, nbytes=600, **options):
    return LayerGroup(layers, "state", state_nbytes=nbytes, **options)


@pytest.mark.parametrize(
    ("layers", "nbytes", "blocks"),
    [(1, 1, 1), (2, 256, 1), (3, 256, 2), (1, 257, 1), (1, 513, 2), (3, 600, 5), (8, 600, 12)],
)
def test_states_take_whole_records(layers, nbytes, blocks):
    """A block is two records of 256 bytes here."""
    spec = make_spec(FULL, state(layers, nbytes))
    assert (spec.planes, spec.bytes_per_block, spec.record_nbytes(0)) == (2, 512, 256)
    assert spec.state_blocks == (blocks,)
    unused = 100 * (1 - layers * nbytes / (blocks * 512))
    assert f"{blocks} blocks a copy, {unused:.1f} % of them unused" in spec.explain(num_blocks=9)


def test_what_a_sequence_takes():
    spec = make_spec(FULL, LayerGroup(1, "sliding_window", window=5), state(), state(1, 8), max_step_tokens=4)
    assert spec.state_blocks == (5, 1)
    assert spec.bytes_per_token == make_spec(FULL, LayerGroup(1)).bytes_per_token  # states cost the same at any length
    for length, flight, windowed in ((1, 1, 1), (400, 1, 3), (400, 2, 4)):
        assert spec.blocks_per_sequence(length, steps_in_flight=flight) == (
            -(-length // 4) + windowed + 6 * (flight + 1)
        )
    assert spec.blocks_per_sequence(0) == 0
    assert spec.sequences_that_fit(400, num_blocks=231) == 2


def test_layers_and_where_they_are():
    spec = make_spec(FULL, state(3), state(1, 8))
    assert spec.kv_groups == spec.groups[:1] and spec.state_groups == spec.groups[1:]
    assert [spec.place(layer) for layer in range(6)] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert list(spec.kv_layers) == [0, 1] and spec.locate(1) == (0, 1)
    for verb in (spec.locate, spec.record_nbytes):
        with pytest.raises(ValueError, match="layer 5 is of group 'state': it has a state, no K and V"):
            verb(5)
    with pytest.raises(ValueError, match="layers 0 to 5"):
        spec.place(6)


def test_a_spec_stays_what_it_is():
    spec = make_spec(FULL, state())
    assert pickle.loads(pickle.dumps(spec)) == spec and hash(spec) == hash(make_spec(FULL, state()))
    half = dataclasses.replace(spec, dtype="float16")
    assert half.groups[1].dtype == "float16" and half.state_blocks == (8,)
    assert (spec.groups[1].kv_heads, spec.groups[1].key_bytes, spec.groups[1].name) == (0, 0, "state")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([state()], "group 0, 'state', is of kind 'state'; such groups come after all those with K and V"),
        ([FULL, state(name="ssm"), FULL], "group 1, 'ssm'"),
        ([FULL, state(nbytes=0)], "state_nbytes is 0"),
        ([FULL, state(nbytes=-8)], "state_nbytes is -8"),
        ([FULL, state(0)], "layers of a group is 0"),
        ([LayerGroup(2, state_nbytes=8)], "state_nbytes=8 in a group of kind 'full'"),
        ([FULL, state(window=4)], "window=4 in a group of kind 'state'"),
        ([FULL, state(sink_tokens=1)], "sink_tokens=1 in"),
        ([FULL, state(kv_heads=1)], "kv_heads=1 in a group of kind 'state', which has no K and V"),
        ([FULL, state(head_dim=8)], "head_dim=8"),
        ([FULL, state(v_head_dim=8)], "v_head_dim=8"),
        ([FULL, state(dtype="float16")], "dtype='float16'"),
    ],
)
def test_groups_that_cannot_be(groups, message):
    with pytest.raises(ValueError, match=message):
        make_spec(*groups)


def test_sizes_of_a_wrong_type():
    with pytest.raises(TypeError, match=r"state_nbytes is 1\.5"):
        make_spec(FULL, state(nbytes=1.5))
