"""ONNX Runtime reads and writes the pool itself, decodes over it, and is told of steps as its own operator is."""

import gc

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache, ViewsOutstanding
from pagedcache.interop.onnxruntime import Stage, ort_value, paged_attention_inputs, pool_values

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
pytest.importorskip("ml_dtypes")

from dense_onnx import dense_logits  # noqa: E402

TYPES = {
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "bfloat16": "tensor(bfloat16)",
    "int8": "tensor(int8)",
    "float8_e4m3": "tensor(float8e4m3fn)",
}


def small_cache(dtype="float32", layers=2, **more):
    return KVCache(CacheSpec(layers=layers, kv_heads=2, head_dim=16, block_size=4, dtype=dtype), num_blocks=8, **more)


def addresses(cache, layer):
    arrays = [*cache.storage.view(layer), *(cache.storage.scales(layer) or ())]
    return [array.ctypes.data for array in arrays]


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_the_pool(dtype):
    cache = small_cache(dtype)
    values = pool_values(cache, 1)
    assert [value.data_ptr() for value in values] == addresses(cache, 1)
    assert [value.shape() for value in values[:2]] == [[9, 4, 2, 16]] * 2
    assert {value.data_type() for value in values[:2]} == {TYPES[dtype]}


def test_a_value_keeps_the_cache_open():
    cache = small_cache()
    values = pool_values(cache, 0)
    with pytest.raises(ViewsOutstanding):
        cache.close()
    del values
    gc.collect()
    cache.close()


def test_a_binding_keeps_the_cache_open():
    """It has the memory's owner, and not only its address."""
    cache = small_cache()
    session = copying_session([9, 4, 2, 16])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", pool_values(cache, 0)[0])
    gc.collect()
    with pytest.raises(ViewsOutstanding):
        cache.close()
    del binding
    gc.collect()
    cache.close()


def copying_session(shape, kind=1):
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [info("x", kind, shape)], [info("y", kind, shape)]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_onnxruntime_writes_into_the_pool():
    cache = small_cache()
    key, value = pool_values(cache, 0)
    cache.storage.view(0)[0][3] = 7
    session = copying_session([9, 4, 2, 16])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", key)
    binding.bind_ortvalue_output("y", value)
    session.run_with_iobinding(binding)
    assert np.array_equal(cache.storage.view(0)[1], cache.storage.view(0)[0])


def test_metadata_only_has_no_pool():
    with pytest.raises(ValueError, match="metadata only"):
        pool_values(small_cache(storage="metadata"), 0)


def test_strided_memory_is_refused():
    with pytest.raises(ValueError, match="not C-contiguous"):
        ort_value(np.zeros((4, 4), np.float32)[:, ::2])


def test_read_only_memory_is_refused():
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        ort_value(array)


def test_a_stage_wants_all_names():
    with pytest.raises(ValueError, match=r"differ in \['y', 'z'\]"):
        Stage(copying_session(["n", 2]), {"x": np.zeros((3, 2), np.float32), "z": np.zeros((3, 2), np.float32)})


def test_a_stage_has_so_many_rows():
    arrays = {name: np.zeros((3, 2), np.float32) for name in "xy"}
    stage = Stage(copying_session(["n", 2]), arrays)
    with pytest.raises(ValueError, match="rows is 4; the arrays of this stage have 1 to 3"):
        stage.run(4)
    arrays["x"][:] = 5
    stage.run(2)
    assert arrays["y"].tolist() == [[5, 5], [5, 5], [0, 0]]


# -- com.microsoft.PagedAttention ---------------------------------------------------------------------------


def paged_attention(cache, step, q_heads=4):
    """A model of that one operator whose inputs are of the types and shapes that we give it."""
    helper, spec, numbers = onnx.helper, cache.spec, {"float16": 10, "bfloat16": 16}[cache.spec.dtype]
    told = paged_attention_inputs(step)
    shapes = {"query": [step.num_tokens, q_heads * spec.head_dim]}
    shapes |= {name: [step.num_tokens, spec.kv_heads * spec.head_dim] for name in ("key", "value")}
    shapes |= {name: pool_values(cache, 0)[0].shape() for name in ("key_cache", "value_cache")}
    inputs = [helper.make_tensor_value_info(name, numbers, shape) for name, shape in shapes.items()]
    inputs += [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in told.items()
    ]
    names = [*shapes, *list(told)[:3], "", "", "slot_mapping"]  # without rotation
    outputs = ["out", "key_cache_out", "value_cache_out"]
    node = helper.make_node(
        "PagedAttention", names, outputs, domain="com.microsoft", num_heads=q_heads, kv_num_heads=spec.kv_heads
    )
    results = [
        helper.make_tensor_value_info(name, numbers, shapes[given])
        for name, given in zip(outputs, ("query", "key_cache", "value_cache"), strict=True)
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "g", inputs, results), opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_only_the_kernel_is_missing(dtype):
    """Names, types and ranks pass the operator's schema; then there is no implementation for the CPU."""
    cache = small_cache(dtype)
    model = paged_attention(cache, cache.extend(cache.admit([range(5), range(2)]).ids, [5, 2]))
    onnx.checker.check_model(model)
    with pytest.raises(Exception, match=r"NOT_IMPLEMENTED.*PagedAttention"):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_wrong_type_fails_otherwise():
    """So that the test above shows something."""
    cache = small_cache("float16")
    model = paged_attention(cache, cache.extend(cache.admit([range(5)]).ids, 5))
    model.graph.input[-1].type.tensor_type.elem_type = 7  # slots in int64
    with pytest.raises(Exception, match="slot_mapping"):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_inputs_are_named_as_the_schema_has_them():
    cache = small_cache()
    told = paged_attention_inputs(cache.extend(cache.admit([range(5)]).ids, 5))
    schemas = onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()
    (schema,) = [each for each in schemas if (each.domain, each.name) == ("com.microsoft", "PagedAttention")]
    assert told.keys() <= {each.name for each in schema.inputs}
    assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in told.values())


def test_slots_are_those_of_the_table():
    cache = small_cache()
    ids = cache.admit([range(5), range(2)]).ids
    cache.commit(cache.extend(ids, [5, 2]), [*range(5), *range(2)])
    told = paged_attention_inputs(cache.extend(ids, [1, 3]))
    assert told["past_seqlens"].tolist() == [5, 2]
    sequence = np.repeat([0, 1], np.diff(told["cumulative_sequence_length"]))
    at = np.array([5, 2, 3, 4])
    assert (told["block_table"][sequence, at // 4] * 4 + at % 4).tolist() == told["slot_mapping"].tolist()


def test_left_padding_cannot_be_told():
    cache = small_cache()
    step = cache.extend(cache.admit([range(3)], pads=[2]).ids, 3)
    with pytest.raises(ValueError, match="left padding"):
        paged_attention_inputs(step)


# -- decoding -----------------------------------------------------------------------------------------------


def test_decoding_is_that_of_group_query_attention(example):
    """Two sequences that share a prompt, cut at attention; and each alone, in one graph over dense K and V."""
    model = example("onnxruntime_decode")
    weights, prompt, endings = model.random_weights(), [3, 1, 4, 1, 5, 9, 2, 6, 5], [3, 7]
    texts = model.generate(weights, prompt, endings, 8)
    for first, text in zip(endings, texts, strict=True):
        tokens = [*prompt, first, *text[:-1]]
        logits = dense_logits(model, weights, tokens, len(prompt))
        assert logits[len(prompt) :].argmax(1).tolist() == text


def test_logits_are_those_of_group_query_attention(example):
    model = example("onnxruntime_decode")
    weights, tokens = model.random_weights(1), list(range(20, 43))
    bound, arrays = model.stages(weights, rows=64)
    spec = CacheSpec(layers=2, kv_heads=model.KV_HEADS, head_dim=model.HEAD_DIM, block_size=4)
    cache = KVCache(spec, num_blocks=16)
    ids, ours = cache.admit([tokens]).ids, []
    for part in [tokens[:10], *([token] for token in tokens[10:])]:
        step = cache.extend(ids, len(part))
        ours.append(model.forward(cache, step, part, bound, arrays).copy())
        cache.commit(step, part)
    theirs = dense_logits(model, weights, tokens, 10)
    assert np.abs(np.concatenate(ours) - theirs).max() < 1e-4 * np.abs(theirs).max()
