"""The simple API: the tutorial's five classes, what they share, and what they refuse."""

import copy
import gc
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from pagedcache import InvalidBlock, OutOfBlocks
from pagedcache.simple import BlockManager, PagedAttention, PageTable, SequenceManager
from pagedcache.testing import reference_attention

HEADS, DIM, PAGE = 2, 8, 4


class Setting:
    """A manager of `pages` pages, sequences over it, and the dense K/V that each should hold."""

    def __init__(self, pages=8, dtype="float32"):
        self.manager = BlockManager(pages, PAGE, HEADS, DIM, dtype=dtype)
        self.sequences = SequenceManager(self.manager)
        self.attention = PagedAttention(self.manager)
        self.random = np.random.default_rng(0)

    def token(self):
        return self.random.standard_normal((2, HEADS, DIM), dtype=np.float32)

    def fill(self, seq_id, count):
        """Make a sequence of `count` random tokens; their K/V [2, count, heads, dim]."""
        self.sequences.create_sequence(seq_id)
        tokens = [self.token() for _ in range(count)]
        for position, (key, value) in enumerate(tokens):
            self.sequences.append_kv(seq_id, position, key, value)
        return np.stack(tokens, axis=1) if tokens else np.zeros((2, 0, HEADS, DIM), np.float32)

    def stored(self, seq_id):
        """K/V [2, tokens, heads, dim] as they lie in the pages of a sequence."""
        table = self.sequences.sequences[seq_id]
        pages = [self.manager.pages[table.get_physical_page(i)] for i in range(-(-table.num_tokens // PAGE))]
        empty = np.zeros((0, HEADS, DIM))
        both = [np.concatenate([empty, *(getattr(p, kind) for p in pages)]) for kind in ("keys", "values")]
        return np.stack(both)[:, : table.num_tokens]

    def state(self):
        """Everything that a refused call may not change."""
        counts = [page.ref_count for page in self.manager.pages]
        tables = {name: (dict(t.logical_to_physical), t.num_tokens) for name, t in self.sequences.sequences.items()}
        kv = {name: self.stored(name).tobytes() for name in tables}
        return counts, self.manager.free_pages, self.manager.allocated_pages, tables, kv


@pytest.fixture
def s():
    return Setting()


def dense(query, kv):
    """float64 attention of independent queries [batch, q_heads, dim] over K/V [2, tokens, heads, dim]."""
    return np.concatenate([reference_attention(each[None], *kv)[0] for each in query])


# -- pages ------------------------------------------------------------------------------------------


def test_pages_are_counted(s):
    taken = [s.manager.allocate_page() for _ in range(3)]
    assert len(set(taken)) == 3
    assert s.manager.allocated_pages == set(taken)
    assert sorted(s.manager.free_pages + taken) == list(range(8))
    assert [s.manager.pages[page].ref_count for page in taken] == [1, 1, 1]
    for page in taken:
        s.manager.free_page(page)
    assert s.manager.free_pages == list(range(8))


def test_double_free_raises_and_changes_nothing(s):
    """M04."""
    page = s.manager.allocate_page()
    s.manager.free_page(page)
    before = s.state()
    for wrong in (page, -1, 8, 2**31, 2**63):
        with pytest.raises(InvalidBlock, match=f"page {wrong} "):
            s.manager.free_page(wrong)
    assert s.state() == before
    assert sorted(s.manager.allocate_page() for _ in range(8)) == list(range(8))


def test_free_page_takes_page_ids_only(s):
    page = s.manager.allocate_page()
    with pytest.raises(TypeError):
        s.manager.free_page(float(page))
    assert s.manager.pages[page].ref_count == 1
    s.manager.free_page(np.int64(page))
    assert s.manager.pages[page].ref_count == 0


def test_page_of_a_sequence_is_not_freed_by_free_page(s):
    s.fill("a", 1)
    page = s.sequences.sequences["a"].get_physical_page(0)
    with pytest.raises(InvalidBlock, match="free_sequence"):
        s.manager.free_page(page)
    assert s.manager.pages[page].ref_count == 1


def test_mapped_page_survives_free_page(s):
    page = s.manager.allocate_page()
    table = PageTable(s.manager)
    table.map_page(0, page)
    assert s.manager.pages[page].ref_count == 2
    s.manager.free_page(page)
    assert s.manager.pages[page].ref_count == 1
    del table
    gc.collect()
    assert page in s.manager.free_pages


def test_pages_are_views(s):
    page = s.manager.pages[s.manager.allocate_page()]
    page.keys[1] = 3
    assert (page.keys[1] == 3).all()
    assert page.keys.shape == page.values.shape == (PAGE, HEADS, DIM)
    s.manager.pool.incref([page.page_id + 1])
    assert not page.keys.flags.writeable
    assert not page.values.flags.writeable


def test_a_manager_is_freed_without_the_cycle_collector():
    import weakref

    manager = BlockManager(4, PAGE, HEADS, DIM)
    watch = weakref.ref(manager.storage)
    _ = manager.pages[0].keys
    gc.disable()
    try:
        del manager, _
        assert watch() is None
    finally:
        gc.enable()


# -- sequences --------------------------------------------------------------------------------------


def test_tokens_lie_in_pages(s):
    kv = s.fill("a", 10)
    table = s.sequences.sequences["a"]
    assert list(table.logical_to_physical) == [0, 1, 2]
    assert table.get_physical_page(3) == -1
    assert len(s.manager.free_pages) == 5
    np.testing.assert_array_equal(s.stored("a"), kv)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_first_writer_of_a_shared_page_gets_a_copy(s, order):
    """W19, in both orders."""
    shared = s.fill("a", 6)
    s.sequences.clone_sequence("a", "b")
    assert len(s.manager.allocated_pages) == 2
    new = {name: s.token() for name in order}
    for name in order:
        s.sequences.append_kv(name, 6, *new[name])
    assert len(s.manager.allocated_pages) == 3  # one copy, not two
    for name in order:
        np.testing.assert_array_equal(s.stored(name)[:, :6], shared)
        np.testing.assert_array_equal(s.stored(name)[:, 6], new[name])
    s.sequences.free_sequence("a")
    before = s.manager.allocated_pages
    s.sequences.append_kv("b", 7, *s.token())
    assert s.manager.allocated_pages == before  # b is the only holder: no copy


def test_overwriting_an_earlier_position_copies_a_shared_page(s):
    shared = s.fill("a", 7)
    s.sequences.clone_sequence("a", "b")
    token = s.token()
    s.sequences.append_kv("b", 1, *token)
    np.testing.assert_array_equal(s.stored("a"), shared)
    expected = shared.copy()
    expected[:, 1] = token
    np.testing.assert_array_equal(s.stored("b"), expected)
    tables = s.sequences.sequences
    assert tables["a"].get_physical_page(0) != tables["b"].get_physical_page(0)
    assert tables["a"].get_physical_page(1) == tables["b"].get_physical_page(1)
    assert tables["b"].num_tokens == 7


def test_overwriting_a_page_of_one_holder_stays_in_place(s):
    s.fill("a", 7)
    before = dict(s.sequences.sequences["a"].logical_to_physical)
    token = s.token()
    s.sequences.append_kv("a", 2, *token)
    assert s.sequences.sequences["a"].logical_to_physical == before
    np.testing.assert_array_equal(s.stored("a")[:, 2], token)


def test_a_page_that_a_caller_holds_is_not_written(s):
    page = s.manager.allocate_page()
    table = s.sequences.create_sequence("a")
    table.map_page(0, page)
    s.sequences.append_kv("a", 0, *s.token())
    assert table.get_physical_page(0) != page
    assert not s.manager.pages[page].keys.any()
    assert s.manager.pages[page].ref_count == 1


def test_ids_can_be_anything_hashable_and_come_again(s):
    for seq_id in (1, "a", (2, 3)):
        s.sequences.create_sequence(seq_id)
    s.sequences.free_sequence(1)
    assert s.sequences.create_sequence(1).num_tokens == 0


def test_an_id_that_is_taken_raises(s):
    s.fill("a", 5)
    s.fill("b", 1)
    before = s.state()
    for call in (
        lambda: s.sequences.create_sequence("a"),
        lambda: s.sequences.clone_sequence("a", "b"),
        lambda: s.sequences.clone_sequence("a", "a"),
    ):
        with pytest.raises(ValueError, match="exists already"):
            call()
        assert s.state() == before


def test_unknown_ids_raise(s):
    for call in (
        lambda: s.sequences.append_kv("x", 0, *s.token()),
        lambda: s.sequences.clone_sequence("x", "y"),
        lambda: s.sequences.free_sequence("x"),
    ):
        with pytest.raises(KeyError, match="no sequence 'x'"):
            call()
    assert not s.sequences.sequences


@pytest.mark.parametrize(
    ("position", "error"), [(6, ValueError), (-1, ValueError), (2**40, ValueError), (1.0, TypeError), (True, TypeError)]
)
def test_positions_beyond_the_next_raise(s, position, error):
    s.fill("a", 5)
    before = s.state()
    with pytest.raises(error, match="token_pos"):
        s.sequences.append_kv("a", position, *s.token())
    assert s.state() == before


@pytest.mark.parametrize(
    "bad",
    [
        np.ones((HEADS + 1, DIM), np.float32),
        np.ones((HEADS, DIM + 1), np.float32),
        np.ones(DIM, np.float32),
        np.float32(1),
        np.ones((HEADS, DIM), np.int64),
        np.full((HEADS, DIM), "x"),
        None,
    ],
    ids=lambda bad: f"{getattr(bad, 'dtype', None)}{getattr(bad, 'shape', '')}",
)
@pytest.mark.parametrize("position", [2, 4, 7], ids=["shared page", "earlier", "new page"])
def test_bad_tokens_change_nothing(s, bad, position):
    s.fill("a", 8)
    s.sequences.clone_sequence("a", "b")
    s.fill("c", 7)
    before = s.state()
    for key, value in ((bad, s.token()[0]), (s.token()[0], bad)):
        with pytest.raises((ValueError, TypeError)):
            s.sequences.append_kv("c" if position == 7 else "a", position, key, value)
        assert s.state() == before


def test_exhausted_pool_changes_nothing():
    s = Setting(pages=2)
    s.fill("a", 7)
    s.sequences.clone_sequence("a", "b")
    s.sequences.create_sequence("c")
    before = s.state()
    for seq_id, position in (("b", 7), ("b", 2), ("c", 0)):
        with pytest.raises(OutOfBlocks, match="No free pages"):
            s.sequences.append_kv(seq_id, position, *s.token())
        assert s.state() == before
    with pytest.raises(MemoryError):  # what the tutorial raises
        s.manager.allocate_page()
    s.sequences.free_sequence("b")
    s.sequences.append_kv("a", 7, *s.token())


def test_thousands_of_cycles_leak_nothing():
    s = Setting(pages=24)
    choice = random.Random(1)
    live, names = [], 0
    for _ in range(4000):
        verb = choice.choice("create append append append clone free".split())
        try:
            if verb == "create" or not live:
                live.append(names)
                s.sequences.create_sequence(names)
                names += 1
            elif verb == "append":
                seq_id = choice.choice(live)
                position = choice.randint(0, s.sequences.sequences[seq_id].num_tokens)
                s.sequences.append_kv(seq_id, position, *s.token())
            elif verb == "clone":
                s.sequences.clone_sequence(choice.choice(live), names)
                live.append(names)
                names += 1
            else:
                s.sequences.free_sequence(live.pop(choice.randrange(len(live))))
        except OutOfBlocks:
            s.sequences.free_sequence(live.pop())
        if len(live) > 12:
            s.sequences.free_sequence(live.pop(0))
    held = [page for t in s.sequences.sequences.values() for page in t.logical_to_physical.values()]
    assert [page.ref_count for page in s.manager.pages] == [held.count(page) for page in range(24)]
    for seq_id in live:
        s.sequences.free_sequence(seq_id)
    assert s.manager.free_pages == list(range(24))
    s.manager.pool.check()


def test_a_dropped_sequence_manager_gives_its_pages_back(s):
    s.fill("a", 9)
    s.sequences = None
    gc.collect()
    assert s.manager.free_pages == list(range(8))


# -- page tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_tables_cannot_be_copied(s, copier):
    s.fill("a", 5)
    before = s.state()
    with pytest.raises(TypeError, match="clone_sequence"):
        copier(s.sequences.sequences["a"])
    assert s.state() == before


def test_the_mapping_is_read_only_and_names_clone_sequence(s):
    s.fill("a", 5)
    table = s.sequences.sequences["a"]
    with pytest.raises(AttributeError, match="clone_sequence"):
        PageTable().logical_to_physical = table.logical_to_physical.copy()
    with pytest.raises(TypeError):
        table.logical_to_physical[0] = 3
    with pytest.raises(AttributeError):
        s.manager.pages[0].ref_count += 1
    with pytest.raises(TypeError):
        s.sequences.sequences["b"] = table


def test_mapping_another_page_lets_the_first_go(s):
    first, second = s.manager.allocate_page(), s.manager.allocate_page()
    table = PageTable(s.manager)
    table.map_page(0, first)
    table.map_page(0, second)
    table.map_page(0, second)
    assert [s.manager.pages[page].ref_count for page in (first, second)] == [1, 2]


@pytest.mark.parametrize("page", [-1, 8, 5, 2**40])
def test_pages_that_nobody_holds_cannot_be_mapped(s, page):
    table = PageTable(s.manager)
    with pytest.raises(InvalidBlock, match=f"page {page} "):
        table.map_page(0, page)
    assert not table.logical_to_physical
    with pytest.raises(ValueError, match="logical_id"):
        table.map_page(-1, s.manager.allocate_page())


def test_a_plain_table_holds_nothing(s):
    page = s.manager.allocate_page()
    table = PageTable()
    table.map_page(0, page)
    assert s.manager.pages[page].ref_count == 1
    s.manager.pages[page].keys[:2] = 0
    s.manager.pages[page].values[:2] = [[[2.0]], [[4.0]]]
    out = s.attention.compute(np.ones((1, HEADS, DIM), np.float32), table, 2)
    np.testing.assert_allclose(out, 3.0)


# -- attention --------------------------------------------------------------------------------------


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
        np.testing.assert_allclose(out, dense(query, s.stored("a").astype(np.float32)), atol=1e-6)


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


def test_scales_are_there_for_eight_bits_only_and_guarded_like_keys(s):
    assert s.manager.pages[0].scales is None
    s = Setting(dtype="int8")
    page = s.manager.pages[s.manager.allocate_page()]
    assert all(scales.flags.writeable for scales in page.scales)
    s.manager.pool.incref([page.page_id + 1])
    assert not any(scales.flags.writeable for scales in page.scales)


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
    with pytest.raises(TypeError, match=r"key is on meta.*key\.cpu\(\)"):
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
