"""The simple API: attention over page tables, of arrays and tensors, against dense softmax."""

import subprocess
import sys

import numpy as np
import pytest
from simple_setting import DIM, HEADS, PAGE, Setting, dense

from pagedcache.simple import PageTable


@pytest.fixture
def s():
    return Setting()


@pytest.mark.parametrize("q_heads", [HEADS, 2 * HEADS, 3 * HEADS])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 13])
def test_equals_dense_softmax(s, q_heads, length):
    kv = s.fill("a", 13)[:, :length]
    query = s.random.standard_normal((3, q_heads, DIM), dtype=np.float32)
    out = s.attention.compute(query, s.sequences.sequences["a"], length)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, dense(query, kv), atol=1e-6)


def test_batch_rows_do_not_see_each_other(s):
    """Every row is an independent query over the same tokens, not the next position."""
    s.fill("a", 9)
    table = s.sequences.sequences["a"]
    query = s.random.standard_normal((4, HEADS, DIM), dtype=np.float32)
    together = s.attention.compute(query, table, 9)
    alone = [s.attention.compute(query[i : i + 1], table, 9)[0] for i in range(4)]
    np.testing.assert_array_equal(together, np.stack(alone))


def test_batch_compute_is_compute_for_each(s):
    lengths = [3, 9, 0]
    for name, length in zip("abc", lengths, strict=True):
        s.fill(name, length)
    tables = [s.sequences.sequences[name] for name in "abc"]
    queries = list(s.random.standard_normal((3, 2 * HEADS, DIM), dtype=np.float32))
    out = s.attention.batch_compute(queries, tables, lengths)
    assert out.shape == (3, 2 * HEADS, DIM)
    for row, query, table, length in zip(out, queries, tables, lengths, strict=True):
        np.testing.assert_array_equal(row, s.attention.compute(query[None], table, length)[0])
    assert not out[2].any()


def test_batches_of_no_query(s):
    out = s.attention.batch_compute([], [], [])
    assert (out.shape, out.dtype) == ((0, HEADS, DIM), np.float32)
    out = s.attention.batch_compute(np.empty((0, 2 * HEADS, DIM)), [], [])
    assert (out.shape, out.dtype) == ((0, 2 * HEADS, DIM), np.float64)


def test_no_token_gives_zeros(s):
    table = s.sequences.create_sequence("a")
    assert not s.attention.compute(np.ones((2, HEADS, DIM), np.float32), table, 0).any()
    assert s.attention.compute(np.ones((0, HEADS, DIM), np.float32), table, 0).shape == (0, HEADS, DIM)


def test_holes_and_missing_tokens_raise(s):
    s.fill("a", 5)
    table = s.sequences.sequences["a"]
    query = np.ones((1, HEADS, DIM), np.float32)
    with pytest.raises(ValueError, match="logical page 2 is not mapped"):
        s.attention.compute(query, table, 9)
    with pytest.raises(ValueError, match="logical page 2 is not mapped"):
        s.attention.compute(query, table, 10**12)
    with pytest.raises(ValueError, match="has 5 tokens"):  # the rest of its last page is anybody's
        s.attention.compute(query, table, 6)
    plain = PageTable()
    plain.map_page(1, 0)
    with pytest.raises(ValueError, match="logical page 0 is not mapped"):
        s.attention.batch_compute([query[0]], [plain], [5])


@pytest.mark.parametrize(
    ("shape", "seq_len", "error", "message"),
    [
        ((1, HEADS, DIM), -1, ValueError, "seq_len is -1"),
        ((1, HEADS, DIM), 1.5, TypeError, "seq_len is 1.5"),
        ((HEADS, DIM), 2, ValueError, "batch, q_heads, head_dim"),
        ((1, HEADS + 1, DIM), 2, ValueError, "multiple of"),
        ((1, HEADS, DIM + 1), 2, ValueError, "q has shape"),
    ],
)
def test_bad_queries_raise(s, shape, seq_len, error, message):
    s.fill("a", 3)
    with pytest.raises(error, match=message):
        s.attention.compute(np.ones(shape, np.float32), s.sequences.sequences["a"], seq_len)


def test_bad_batches_raise(s):
    table = s.sequences.create_sequence("a")
    query = np.ones((HEADS, DIM), np.float32)
    with pytest.raises(ValueError, match="1 queries, 2 page_tables"):
        s.attention.batch_compute([query], [table, table], [0])
    with pytest.raises(ValueError, match="same shape"):
        s.attention.batch_compute([query, query[:1]], [table, table], [0, 0])


def test_a_table_of_another_manager_raises(s):
    other = Setting()
    other.fill("a", 3)
    with pytest.raises(ValueError, match="another BlockManager"):
        s.attention.compute(np.ones((1, HEADS, DIM), np.float32), other.sequences.sequences["a"], 3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_storage_types(dtype):
    s = Setting(dtype=dtype)
    s.fill("a", 6)
    query = s.random.standard_normal((1, HEADS, DIM), dtype=np.float32)
    out = s.attention.compute(query, s.sequences.sequences["a"], 6)
    raw = s.manager.pages[0].keys
    assert raw.dtype == s.manager.spec.storage_dtype
    if raw.dtype != np.uint16:
        stored = s.stored("a").astype(np.float32)
        native = s.manager.backend.capabilities.precisions[dtype] == "native"  # a processor that multiplies bfloat16
        np.testing.assert_allclose(out, dense(query, stored), atol=1e-2 * np.abs(stored).max() if native else 1e-6)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3"])
def test_eight_bits_times_their_scales_are_what_attention_reads(dtype):
    s = Setting(dtype=dtype)
    kv = s.fill("a", 3)
    page = s.manager.pages[s.sequences.sequences["a"].get_physical_page(0)]
    if page.keys.dtype == np.uint8:
        pytest.skip("without ml_dtypes NumPy cannot read fp8")
    both = zip((page.keys, page.values), page.scales, strict=True)
    read = np.stack([codes[:3].astype(np.float32) * scales[:3, :, None] for codes, scales in both])
    np.testing.assert_allclose(read, kv, rtol=2**-4, atol=np.abs(kv).max() / 127)
    assert (page.scales[0].shape, page.scales[0].dtype) == ((PAGE, HEADS), np.float32)
    query = s.random.standard_normal((1, HEADS, DIM), dtype=np.float32)
    out = s.attention.compute(query, s.sequences.sequences["a"], 3)
    np.testing.assert_allclose(out, dense(query, read), atol=1e-6)


def test_the_copy_of_an_eight_bit_page_has_its_scales():
    s = Setting(dtype="int8")
    s.fill("a", 4)
    clone = s.sequences.clone_sequence("a", "b")
    s.sequences.append_kv("b", 3, *s.token())
    query = s.random.standard_normal((1, HEADS, DIM), dtype=np.float32)
    ours, theirs = (s.attention.compute(query, table, 3) for table in (clone, s.sequences.sequences["a"]))
    np.testing.assert_array_equal(ours, theirs)


def test_float64_and_lists_are_taken_as_float32(s):
    s.sequences.create_sequence("a")
    token = s.random.standard_normal((2, HEADS, DIM))
    s.sequences.append_kv("a", 0, token[0], token[1].tolist())
    np.testing.assert_array_equal(s.stored("a")[:, 0], token.astype(np.float32))
    out = s.attention.compute(np.ones((1, HEADS, DIM)), s.sequences.sequences["a"], 1)
    assert out.dtype == np.float64
    np.testing.assert_array_equal(out[0], token[1].astype(np.float32))


@pytest.mark.parametrize("kind", ["transposed", "reversed", "big-endian", "read-only"])
def test_any_strides_are_taken(s, kind):
    token = s.token()
    given = {
        "transposed": token.swapaxes(1, 2).copy().swapaxes(1, 2),
        "reversed": token[:, ::-1, ::-1].copy()[:, ::-1, ::-1],
        "big-endian": token.astype(">f4"),
        "read-only": token.copy(),
    }[kind]
    given.flags.writeable = False
    s.sequences.create_sequence("a")
    s.sequences.append_kv("a", 0, *given)
    np.testing.assert_array_equal(s.stored("a")[:, 0], token)


# -- torch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_torch_in_torch_out(s, dtype):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    table = s.sequences.create_sequence("a")
    tokens = torch.randn(2, 6, HEADS, DIM, generator=torch.Generator().manual_seed(0)).to(kind)
    for position in range(6):
        s.sequences.append_kv("a", position, tokens[0, position].requires_grad_(), tokens[1, position])
    query = torch.randn(2, HEADS, DIM).to(kind).requires_grad_()
    out = s.attention.compute(query, table, 6)
    assert isinstance(out, torch.Tensor)
    assert (out.dtype, out.shape, out.requires_grad) == (kind, query.shape, False)
    scores = torch.einsum("bhd,shd->bhs", query.detach().double(), tokens[0].double()) * DIM**-0.5
    expected = torch.einsum("bhs,shd->bhd", torch.softmax(scores, -1), tokens[1].double())
    torch.testing.assert_close(out.double(), expected.detach(), rtol=0, atol=1e-5 if "32" in dtype else 2e-2)
    batch = s.attention.batch_compute(list(query), [table, table], [6, 6])
    assert torch.equal(batch, out)
    assert torch.equal(s.attention.batch_compute(query, [table, table], [6, 6]), out)


def test_a_tensor_elsewhere_is_refused(s):
    torch = pytest.importorskip("torch")
    s.sequences.create_sequence("a")
    with pytest.raises(TypeError, match=r"key is Tensor on meta.*key\.cpu\(\)"):
        s.sequences.append_kv("a", 0, torch.ones(HEADS, DIM, device="meta"), torch.ones(HEADS, DIM))


def test_the_simple_api_does_not_import_torch():
    code = (
        "import sys, numpy as np\n"
        "from pagedcache import BlockManager, PagedAttention, SequenceManager\n"
        "manager = BlockManager(2, 4, 1, 2); sequences = SequenceManager(manager)\n"
        "table = sequences.create_sequence(0); one = np.ones((1, 2), np.float32)\n"
        "sequences.append_kv(0, 0, one, one); PagedAttention(manager).compute(one[None], table, 1)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
