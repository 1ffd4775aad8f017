"""What the C interface refuses, in words, and that nothing has changed then."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
from c_cache import CCache, options_of
from c_table import CError, Config, Layer, StepArrays, address, api, require, table

BLOCK, HEADS, DIM = 4, 2, 8
SHAPE = {"num_blocks": 6, "block_size": BLOCK, "kv_heads": HEADS, "head_dim": DIM}
Q = np.ones((3, 4, DIM), np.float32)
K = np.ones((3, HEADS, DIM), np.float32)


@pytest.fixture
def cache():
    cache = CCache(num_layers=2, max_sequences=3, **SHAPE)
    yield cache
    if cache.handle:
        cache.check()
        cache.close()


def state(cache):
    kept = [array.tobytes() for layer in (0, 1) for array in cache.arrays(layer)[:2]]
    figures = [getattr(cache.stats, name) for name, _ in cache.stats._fields_]
    return kept, figures


# -- configurations ---------------------------------------------------------------------------------------------------

CONFIGS = {
    "num_blocks is 0": {"num_blocks": 0},
    "num_blocks is -1": {"num_blocks": -1},
    "block_size is 1025": {"block_size": 1025},
    "block_size is -1": {"block_size": -1},
    "kv_heads is 0": {"kv_heads": 0},
    "head_dim is -8": {"head_dim": -8},
    "heads of 8 numbers are too many": {"kv_heads": 2**31 - 1},
    "v_head_dim is -1": {"v_head_dim": -1},
    "num_layers is -1": {"num_layers": -1},
    "max_sequences is -3": {"max_sequences": -3},
    "max_length is -1": {"max_length": -1},
    "threads is -1": {"threads": -1},
    "no memory for 2000000000 blocks": {"num_blocks": 2000000000, "block_size": 1024},
}


@pytest.mark.parametrize("words", CONFIGS)
def test_configuration(words):
    with pytest.raises(CError, match=words):
        CCache(**{"num_layers": 1} | SHAPE | CONFIGS[words])


def test_dtype_and_layout_are_known():
    handle = ctypes.c_void_p()
    for name in ("dtype", "layout"):
        with pytest.raises(CError, match=f"INVALID: {name} is 5"):
            require(api.open(ctypes.byref(Config(num_layers=1, **SHAPE, **{name: 5})), ctypes.byref(handle)))
        assert not handle


def test_layers_must_fit_the_cache():
    k = np.zeros((7, BLOCK, HEADS, DIM), np.float32)
    layers = Layer(address(k), address(k), None, None, 5, BLOCK, HEADS, DIM)
    with pytest.raises(CError, match=r"layers\[0\] has 5 blocks of 4 tokens; the cache 6 of 4"):
        CCache(num_layers=1, layers=ctypes.addressof(layers), **SHAPE)
    layers.num_blocks, layers.k_scales = 6, address(k)
    with pytest.raises(CError, match="the layer has scales"):
        CCache(num_layers=1, layers=ctypes.addressof(layers), **SHAPE)


# -- verbs ------------------------------------------------------------------------------------------------------------


def test_handles(cache):  # a stale handle never names the next sequence of its row
    first, second = cache.start(2)
    other = CCache(num_layers=0, num_blocks=2)
    theirs = other.start(1)
    other.close()
    cache.release([first])
    third = cache.start(1)
    before = state(cache)
    for wrong in (first, 0, -1, 2**31, theirs[0], third[0] + 2):
        for verb in (cache.extend, cache.truncate):
            with pytest.raises(CError, match=rf"STALE: sequence {wrong} .number 1 of the call."):
                verb([second, wrong], [1, 0])
        with pytest.raises(CError, match="STALE"):
            cache.release([second, wrong])
        with pytest.raises(CError, match="STALE"):
            cache.fork(wrong)
        assert cache.length(wrong) == -1
    with pytest.raises(CError, match="named twice"):
        cache.release([second, second])
    assert state(cache) == before


def test_running_out(cache):
    ids = cache.start(3)
    before = state(cache)
    for full in (lambda: cache.start(1), lambda: cache.fork(ids[0])):
        with pytest.raises(CError, match="OUT_OF_SEQUENCES: 1 sequences wanted, 0 of 3"):
            full()
    with pytest.raises(CError, match="OUT_OF_BLOCKS: 7 blocks wanted, 6 of 6 are free"):
        cache.extend(ids, [9, 9, 1])
    assert state(cache) == before


VERBS = {
    r"counts\[1\] is -1": lambda cache, ids: cache.extend(ids, [1, -1]),
    r"counts\[0\] is 25; with the 0 tokens": lambda cache, ids: cache.extend(ids, [25, 1]),
    r"positions\[1\] is 1; the sequence has 0": lambda cache, ids: cache.truncate(ids, [0, 1]),
    r"positions\[0\] is -1": lambda cache, ids: cache.truncate(ids, [-1, 0]),
    "at is 1; the sequence has 0": lambda cache, ids: cache.fork(ids[0], 1),
    "at is -2": lambda cache, ids: cache.fork(ids[0], -2),
    "NO_STEP": lambda cache, _: cache.commit(),
    "NO_STEP: no step is open": lambda cache, _: cache.abandon(),
    "NO_STEP: no step": lambda cache, _: cache.attend(0, Q, K, K),
    "n is -1": lambda cache, ids: require(api.release(cache.handle, -1, address(ids))),
    "counts is NULL": lambda cache, ids: require(api.extend(cache.handle, 2, address(ids), None)),
    "cache is NULL": lambda _, ids: require(api.extend(None, 2, address(ids), None)),
}


@pytest.mark.parametrize("words", VERBS)
def test_verbs(cache, words):
    ids = cache.start(2)
    before = state(cache)
    with pytest.raises(CError, match=words):
        VERBS[words](cache, ids)
    assert state(cache) == before


def test_an_open_step_holds_its_sequences(cache):
    ids = cache.start(2)
    cache.extend(ids[:1], [3])
    for verb in (lambda: cache.fork(ids[0]), lambda: cache.truncate(ids, [0, 0]), lambda: cache.release(ids)):
        with pytest.raises(CError, match="STEP_OPEN: sequence"):
            verb()
    with pytest.raises(CError, match="STEP_OPEN: a step of 1 sequences is open"):
        cache.extend(ids[1:], [1])
    cache.release(ids[1:])
    cache.commit()
    assert cache.length(ids[0]) == 3


TENSORS = {
    "layer 2: the cache has layers 0 to 1": {"layer": 2},
    "q is NULL": {"q": None, "out": Q.copy()},
    "one of k and v is NULL": {"v": None},
    "q_heads is 3": {"q": Q[:, :3].copy()},
    "out, lse and q overlap": {"out": Q},
    "window is -1": {"window": -1},
    "scale is nan": {"scale": np.nan},
    "softcap is -1": {"softcap": -1.0},
    r"alibi_slopes\[3\] is inf": {"alibi_slopes": np.array([0, 0, 0, np.inf], np.float32)},
    r"sink_logits\[0\] is nan": {"sink_logits": np.array([np.nan, 0, 0, 0], np.float32)},
    "threads is -2": {"threads": -2},
}


@pytest.mark.parametrize("words", TENSORS)
def test_attend_refuses_before_it_writes(cache, words):
    cache.extend(cache.start(1), [3])
    before = state(cache)
    given = {"layer": 1, "q": Q, "k": K, "v": K} | TENSORS[words]
    with pytest.raises(CError, match=words):
        cache.attend(**given)
    assert state(cache) == before
    cache.abandon()


def test_scales_fit_finite_numbers_only():
    cache = CCache(num_layers=1, dtype="int8", **SHAPE)
    cache.extend(cache.start(1), [3])
    k = K.copy()
    k[2, 1, 7] = np.inf
    before = [array.tobytes() for array in cache.arrays(0)]
    with pytest.raises(CError, match="v holds NaN or an infinity"):
        cache.attend(0, Q, K, k)
    assert [array.tobytes() for array in cache.arrays(0)] == before
    cache.close()


# -- steps that others made -------------------------------------------------------------------------------------------

ARRAYS = {
    "tables": np.array([[1, 2, -1], [3, -1, -1]], np.int32),
    "indptr": np.array([0, 1, 3], np.int32),
    "lens": np.array([8, 2], np.int32),
    "pads": np.zeros(2, np.int32),
    "positions": np.array([7, 0, 1], np.int64),
    "mask": np.zeros(1, np.uint8),
    "mask_indptr": np.array([0, 0, 1], np.int64),
}
STEPS = {
    r"block_tables\[0, 1\] is 7": {"tables": np.array([[1, 7, 0], [3, 0, 0]], np.int32)},
    r"block_tables\[1, 0\] is 0": {"tables": np.array([[1, 2, 0], [0, 0, 0]], np.int32)},
    "qo_indptr is 1 to 3": {"indptr": np.array([1, 2, 3], np.int32)},
    r"qo_indptr\[0\] is 0 and the next 4": {"indptr": np.array([0, 4, 3], np.int32)},
    r"qo_indptr\[0\] is 0 and the next -1": {"indptr": np.array([0, -1, 3], np.int32)},
    r"kv_lens\[1\] is 13; it must be 0 to 12": {"lens": np.array([8, 13], np.int32)},
    r"kv_lens\[0\] is -1": {"lens": np.array([-1, 2], np.int32)},
    r"kv_pads\[1\] is -1": {"pads": np.array([0, -1], np.int32)},
    r"positions\[2\] is": {"positions": np.array([7, 0, 2**62], np.int64)},
    "sequence 1 2 bytes": {"mask_indptr": np.array([0, 0, 2], np.int64)},
    "sequence 0 0 bytes from 1": {"mask_indptr": np.array([1, 1, 2], np.int64)},
    "both mask and mask_indptr": {"mask": None},
}


@pytest.mark.parametrize("words", STEPS)
def test_steps(words):
    k = np.zeros((7, BLOCK, HEADS, DIM), np.float32)
    layer = Layer(address(k), address(k), None, None, 6, BLOCK, HEADS, DIM)
    given = {name: address(array) for name, array in (ARRAYS | STEPS[words]).items()}
    step = StepArrays(
        2, 3, 3, 0, given["tables"], given["indptr"], given["lens"], given["pads"], None, given["positions"], None,
        given["mask"], given["mask_indptr"], 0, 0,
    )  # fmt: skip
    plan = ctypes.c_void_p(1)
    with pytest.raises(CError, match=words):
        require(api.plan_make(ctypes.byref(layer), ctypes.byref(step), 4, ctypes.byref(plan)))
    assert not plan


def test_slots_and_pairs():
    k = np.zeros((7, BLOCK, HEADS, DIM), np.float32)
    layer = Layer(address(k), address(k), None, None, 6, BLOCK, HEADS, DIM)
    for wrong in (3, 28, -1, 2**40):
        slots = np.array([4, wrong], np.int64)
        with pytest.raises(CError, match=rf"slots\[1\] is {wrong}; the slots of blocks 1 to 6 are 4 to 27"):
            require(api.write(ctypes.byref(layer), address(K), address(K), 0, address(slots), 2, 0))
    for pairs, words in (
        ([[1, 2], [0, 3]], r"pairs\[1\] is 0 to 3"),
        ([[1, 7]], "blocks 1 to 6"),
        ([[1, 2], [3, 2]], "a target once"),
        ([[1, 2], [2, 3]], "which is a target"),
    ):
        array = np.array(pairs, np.int32)
        with pytest.raises(CError, match=words):
            require(api.copy_blocks(ctypes.byref(layer), 1, address(array), len(array), 0))
    assert not k.any()


def test_a_plan_goes_for_its_shape_of_layers(cache):
    step = cache.extend(cache.start(1), [3])
    plan = ctypes.c_void_p()
    require(api.plan_make(api.layer(cache.handle, 0), ctypes.byref(step), 4, ctypes.byref(plan)))
    k = np.zeros((9, BLOCK, HEADS, DIM), np.float32)
    other = Layer(address(k), address(k), None, None, 8, BLOCK, HEADS, DIM)
    out = np.empty_like(Q)
    with pytest.raises(CError, match="the plan is for 6 blocks of 4 tokens and 2 KV heads, the layer has 8"):
        require(api.attend(other, plan, address(Q), 0, address(out), 0, None, options_of()))
    api.plan_free(plan)


def test_misaligned_arrays():
    k = np.zeros((7, BLOCK, HEADS, DIM), np.float32)
    layer = Layer(address(k) + 2, address(k), None, None, 6, BLOCK, HEADS, DIM)
    with pytest.raises(CError, match="aligned to 4 bytes"):
        require(api.write(ctypes.byref(layer), None, None, 0, None, 0, 0))


# -- versions and environment -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [-1, 0, 2, 2**31 - 1])
def test_versions_that_the_library_does_not_know(version):
    assert table(version) is None


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PAGEDCACHE_ISA", "mmx", "there is none of that name; compiled are baseline"),
        ("PAGEDCACHE_NUM_THREADS", "2x", "must be a number of threads"),
        ("PAGEDCACHE_NUM_THREADS", "0", "must be a number of threads"),
    ],
)
def test_nonsense_in_the_environment(variable, value, words):
    code = "from c_cache import CCache; CCache(num_layers=1, num_blocks=1, kv_heads=1, head_dim=1)"
    paths = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths, variable: value, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and words in done.stderr
