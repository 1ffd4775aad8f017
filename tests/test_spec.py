"""CacheSpec: what a block costs, what a budget buys, and which specs are refused."""

import copy
import dataclasses
import math
import pickle
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pagedcache.backends import get
from pagedcache.spec import CacheSpec, LayerGroup, parse_bytes


def windowed(**options):
    return LayerGroup(**{"layers": 1, "kind": "sliding_window", "window": 8} | options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512 MiB", 512 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("2 gb", 2 * 10**9),
        ("0.1 kB", 100),
        (".5KiB", 512),
        ("1.TiB", 2**40),
        (" 7 b ", 7),
        ("4096", 4096),
        (0, 0),
        (np.int64(2**40), 2**40),
        ("12345678901234567.5 TiB", 24691357802469135 * 2**39),
    ],
)
def test_parse_bytes(text, expected):
    assert parse_bytes(text) == expected
    assert type(parse_bytes(text)) is int


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "1 MB/s", "5 XiB", "1,5 GiB", -1, "١ TB KiB"])
def test_sizes_that_mean_nothing(text):
    with pytest.raises(ValueError, match=r"bytes"):
        parse_bytes(text)


@pytest.mark.parametrize("thing", [None, 1.5, True, b"5"])
def test_sizes_of_a_wrong_type(thing):
    with pytest.raises(TypeError, match="a size in bytes"):
        parse_bytes(thing)


def test_defaults_make_one_full_group():
    spec = CacheSpec(30, 3, 64)
    assert spec.groups == (LayerGroup(30, "full", None, 0, 3, 64, 64, "float32", "full"),)
    assert (spec.num_groups, spec.planes, spec.v_head_dim, spec.layout) == (1, 30, 64, "NHD")
    assert hash(spec) == hash(CacheSpec(30, 3, 64))
    assert dataclasses.replace(spec, block_size=32) == CacheSpec(30, 3, 64, block_size=32)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.layers = 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"kv_heads": -1}, "kv_heads is -1"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"v_head_dim": 0}, "v_head_dim is 0"),
        ({"block_size": 0}, "block_size is 0"),  # W37
        ({"block_size": -1}, "block_size is -1"),
        ({"block_size": 1025}, "at most 1024"),
        ({"block_size": 2**31}, "at most 1024"),
        ({"dtype": "float64"}, "dtype is 'float64'.*'float32'"),
        ({"layout": "DHN"}, "layout is 'DHN'.*'NHD', 'HND'"),
        ({"max_step_tokens": 0}, "max_step_tokens is 0"),
        ({"groups": []}, "0 layers together.*layers=2"),
        ({"groups": [LayerGroup(1)]}, "1 layers together.*layers=2"),
        ({"groups": [LayerGroup(1, "sometimes"), LayerGroup(1)]}, "kind of a group is 'sometimes'"),
        ({"groups": [LayerGroup(2, window=4)]}, "window=4.*'full'"),
        ({"groups": [LayerGroup(2, sink_tokens=4)]}, "sink_tokens=4"),
        ({"groups": [LayerGroup(2, "sliding_window")], "max_step_tokens": 1}, "window=None"),
        ({"groups": [windowed(layers=2)]}, "max_step_tokens"),
        ({"groups": [windowed(layers=2, window=0)], "max_step_tokens": 1}, "window is 0"),  # W16
        ({"groups": [windowed(layers=2, sink_tokens=-1)], "max_step_tokens": 1}, "sink_tokens is -1"),
        ({"groups": [LayerGroup(2, kv_heads=-1)]}, "kv_heads is -1"),
    ],
)
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        CacheSpec(**{"layers": 2, "kv_heads": 1, "head_dim": 8} | options)


@pytest.mark.parametrize("options", [{"layers": 1.0}, {"kv_heads": "3"}, {"head_dim": True}, {"fingerprint": "x"}])
def test_values_of_a_wrong_type(options):
    with pytest.raises(TypeError, match=next(iter(options))):
        CacheSpec(**{"layers": 2, "kv_heads": 1, "head_dim": 8} | options)


@pytest.mark.parametrize(
    ("own", "groups"),
    [
        ({}, [LayerGroup(2, kv_heads=4, head_dim=16, dtype="float16")]),
        ({}, [LayerGroup(1, dtype="float16"), LayerGroup(1, dtype="float16")]),
        ({"dtype": "float16"}, [LayerGroup(2, dtype="float32")]),
    ],
)
def test_a_shape_that_all_groups_share_is_the_specs(own, groups):
    """Or the planner, which asks the groups, would not equal the arrays, which ask the spec."""
    with pytest.raises(ValueError, match=r"every group has kv_heads=.*, and the spec kv_heads=2, .*on the spec"):
        CacheSpec(2, 2, 8, groups=groups, **own)
    with pytest.raises(ValueError, match=r"every group has .*dtype='int8', and the spec .*dtype='float16'"):
        dataclasses.replace(CacheSpec(2, 2, 8, dtype="int8", groups=[LayerGroup(2, dtype="int8")]), dtype="float16")


@pytest.mark.parametrize("groups", [None, [LayerGroup(2)], [LayerGroup(1), LayerGroup(1, name="last")]])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_the_planner_equals_what_is_allocated(groups, layout):
    final = {"kv_heads": 2, "head_dim": 8, "v_head_dim": 10, "dtype": "float16", "block_size": 3, "layout": layout}
    made = CacheSpec(2, groups=groups, **final)
    replaced = CacheSpec(2, 5, 9, groups=groups)
    for name, value in final.items():
        replaced = dataclasses.replace(replaced, **{name: value})
    assert replaced == made
    for spec in (made, replaced):
        storage = get("numpy").allocate(spec, 4)
        assert storage.nbytes == spec.pool_nbytes(4) == sum(a.nbytes for plane in storage.export() for a in plane)
        assert spec.bytes_per_block == spec.planes * 3 * 2 * (8 + 10) * 2


def test_groups_of_one_spec_can_be_given_to_another():
    groups = CacheSpec(2, 2, 8, groups=[LayerGroup(1), LayerGroup(1, kv_heads=4)]).groups
    assert [group.dtype for group in CacheSpec(2, 2, 8, dtype="int8", groups=groups).groups] == ["int8", "int8"]
    assert [group.kv_heads for group in CacheSpec(2, 1, 8, groups=groups).groups] == [1, 4]
    mine = dataclasses.replace(groups[0], dtype="float32")  # now given, as all that is filled in
    with pytest.raises(ValueError, match="every group has"):
        CacheSpec(1, 3, 8, groups=[mine])


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda spec: pickle.loads(pickle.dumps(spec))])
def test_copies_of_a_spec_are_equal_and_can_be_replaced(again):
    spec = CacheSpec(2, 2, 8, fingerprint=b"x", groups=[LayerGroup(1), LayerGroup(1, head_dim=4)])
    assert again(spec) == spec
    assert dataclasses.replace(again(spec), dtype="int8").groups[1].dtype == "int8"


def test_shapes():
    spec = CacheSpec(2, 3, 5, v_head_dim=4, block_size=7)
    assert (spec.key_shape(10), spec.value_shape(10), spec.scale_shape(10)) == (
        (11, 7, 3, 5),
        (11, 7, 3, 4),
        (11, 7, 3),
    )
    spec = dataclasses.replace(spec, layout="HND")
    assert (spec.key_shape(10), spec.value_shape(10), spec.scale_shape(10)) == (
        (11, 3, 7, 5),
        (11, 3, 7, 4),
        (11, 3, 7),
    )


@pytest.mark.parametrize("num_blocks", [0, -1, 2**31 - 1])
def test_numbers_of_blocks_out_of_range(num_blocks):
    with pytest.raises(ValueError, match=f"num_blocks is {num_blocks}"):
        CacheSpec(1, 1, 1).pool_nbytes(num_blocks)


@pytest.mark.parametrize(
    ("dtype", "bytes_per_token"),
    [
        ("float32", 9 * 144 * 4),
        ("float16", 9 * 144 * 2),
        ("bfloat16", 9 * 144 * 2),
        ("int8", 9 * (144 + 8)),
        ("float8_e4m3", 9 * (144 + 8)),
        ("float8_e5m2", 9 * 144),
    ],
)
def test_bytes(dtype, bytes_per_token):
    spec = CacheSpec(3, 3, 80, v_head_dim=64, dtype=dtype, block_size=7)
    assert spec.bytes_per_token == bytes_per_token
    assert spec.bytes_per_block == 7 * bytes_per_token == 3 * spec.record_nbytes(0)
    assert spec.pool_nbytes(5) == 6 * 7 * bytes_per_token
    assert spec.has_scales == (dtype in ("int8", "float8_e4m3"))


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", np.uint16), ("float8_e4m3", np.uint8)])
def test_storage_dtype_without_ml_dtypes(dtype, bits, monkeypatch):
    from pagedcache.exchange import numpy_dtype

    numpy_dtype.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert CacheSpec(1, 1, 1, dtype=dtype).storage_dtype == bits
    numpy_dtype.cache_clear()


def test_storage_dtype_with_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert CacheSpec(1, 1, 1, dtype="bfloat16").storage_dtype == ml_dtypes.bfloat16
    assert CacheSpec(1, 1, 1, dtype="float8_e4m3").storage_dtype == ml_dtypes.float8_e4m3fn


def test_smaller_groups_are_padded_and_the_text_says_so():
    spec = CacheSpec(5, 2, 8, block_size=4, groups=[LayerGroup(3), LayerGroup(2, name="few")])
    assert spec.planes == 3
    assert spec.bytes_per_block == 3 * 4 * 2 * 16 * 4
    assert spec.bytes_per_token == 5 * 2 * 16 * 4
    assert [spec.locate(layer) for layer in range(5)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert "group 'few': 2 layers, 2 heads, K 8 and V 8 wide; 33.3 % of a block unused" in spec.explain(num_blocks=9)
    assert "9 usable blocks in 15.00 KiB: for all groups together" in spec.explain(num_blocks=9)


def test_groups_of_other_shapes_take_the_widest_plane():
    groups = [LayerGroup(2), LayerGroup(1, kv_heads=4, head_dim=3, dtype="float16"), LayerGroup(1, dtype="int8")]
    spec = CacheSpec(4, 2, 8, v_head_dim=10, block_size=4, groups=groups)
    assert [(g.kv_heads, g.head_dim, g.v_head_dim) for g in spec.groups] == [(2, 8, 10), (4, 3, 3), (2, 8, 10)]
    assert spec.bytes_per_block == 2 * 4 * (2 * 8 * 4 + 2 * 10 * 4 + 2 * 2 * 4)
    assert spec.record_nbytes(2) == 4 * 4 * 6 * 2


@pytest.mark.parametrize("layer", [-1, 5])
def test_layers_that_are_not_there(layer):
    with pytest.raises(ValueError, match=f"{layer}"):
        CacheSpec(5, 1, 1).locate(layer)


def test_budget_below_one_block_names_the_minimum():  # M10, R14
    spec = CacheSpec(3, 3, 80, v_head_dim=64, dtype="int8", block_size=7)
    least = spec.pool_nbytes(1)
    assert spec.blocks_for(least) == 1
    with pytest.raises(ValueError, match=rf"{least - 1} bytes.*takes {least} bytes"):
        spec.blocks_for(least - 1)
    with pytest.raises(ValueError, match="memory='1 KiB' is 1024 bytes"):
        spec.blocks_for("1 KiB")


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 300), st.integers(1, 1024), st.integers(0, 2**40))
@example(layers=1, kv_heads=1, head_dim=1, block_size=1, extra=2**40)
def test_budget_is_used_and_kept(layers, kv_heads, head_dim, block_size, extra):  # M10
    spec = CacheSpec(layers, kv_heads, head_dim, dtype="int8", block_size=block_size)
    budget = spec.pool_nbytes(1) + extra
    blocks = spec.blocks_for(budget)
    assert spec.pool_nbytes(blocks) <= budget
    assert budget < spec.pool_nbytes(blocks) + spec.bytes_per_block or blocks == 2**31 - 2  # ids are int32


def test_sequences_that_fit():
    spec = CacheSpec(1, 1, 8, block_size=16)
    assert [spec.blocks_per_sequence(length) for length in (0, 1, 15, 16, 17, 48)] == [0, 1, 1, 1, 2, 3]
    assert spec.sequences_that_fit(17, num_blocks=11) == 5
    assert spec.sequences_that_fit(17, memory=spec.pool_nbytes(11)) == 5
    assert spec.sequences_that_fit(1000, num_blocks=11) == 0
    for wrong in ({}, {"num_blocks": 1, "memory": 1}):
        with pytest.raises(ValueError, match="exactly one"):
            spec.sequences_that_fit(17, **wrong)
    with pytest.raises(ValueError, match="length is 0"):
        spec.sequences_that_fit(0, num_blocks=11)


def test_blocks_of_a_windowed_sequence():
    group = windowed(layers=2, window=33, sink_tokens=5)
    spec = CacheSpec(3, 1, 8, groups=[LayerGroup(1), group], max_step_tokens=20)
    kept = math.ceil((33 - 1 + 20) / 16) + 1 + 1
    assert spec.blocks_per_sequence(1000) == math.ceil(1000 / 16) + kept
    assert spec.blocks_per_sequence(20) == 2 + 2
    assert spec.blocks_per_sequence(1000, steps_in_flight=2) == math.ceil(1000 / 16) + math.ceil(72 / 16) + 2
