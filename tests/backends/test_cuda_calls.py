"""What the kernels' backend promises besides the suite, shown on the emulator."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from pagedcache import KVCache
from pagedcache.backends.cuda import _kernels
from pagedcache.backends.cuda._params import ATTEND
from pagedcache.backends.cuda._plan import make_plan
from pagedcache.backends.cuda._workspace import Workspace, most_spans
from pagedcache.backends.cuda_emulated import CudaEmulatedBackend
from pagedcache.errors import UnsupportedByBackend
from pagedcache.spec import CacheSpec
from pagedcache.testing.scenes import make_scene, make_step

pytestmark = pytest.mark.usefixtures("cxx")
HALF = CacheSpec(1, 2, 64, dtype="float16")


class Counting:
    """Counts launches and allocations of a launcher, and keeps the addresses of arrays in structs."""

    def __init__(self, launcher):
        self.launcher, self.launched, self.made = launcher, [], 0

    def __getattr__(self, name):
        if name in ("empty", "upload"):
            self.made += 1
        return getattr(self.launcher, name)

    def launch(self, kernel, grid, params):
        self.launched.append((kernel.name, grid, params.tobytes()))
        self.launcher.launch(kernel, grid, params)


def backend_with(**options):
    backend = CudaEmulatedBackend(**options)
    backend._launcher = Counting(backend._launcher)
    return backend


@pytest.mark.parametrize("order", ["reverse", "random"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_order_of_threads_does_not_matter(order, dtype):
    spec = CacheSpec(1, 2, 64, dtype=dtype, layout="HND")
    lengths = [(1, 300), (3, 40), (70, 90)]
    expected = make_scene(CudaEmulatedBackend(), spec, lengths, q_heads=8).attend()
    found = make_scene(CudaEmulatedBackend(order, seed=5), spec, lengths, q_heads=8).attend()
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("multiprocessors", [1, 3, 100])
def test_the_size_of_the_gpu_does_not_matter(multiprocessors):
    scene = make_scene(CudaEmulatedBackend(), HALF, [(1, 2100), (17, 90), (1, 5)], q_heads=4)
    expected = scene.attend()[0]
    scene.backend._launcher.multiprocessors = multiprocessors
    np.testing.assert_array_equal(scene.attend()[0], expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("q_len", [3, 40, 100])
def test_values_that_are_not_finite_reach_only_queries_that_see_them(dtype, q_len):
    scene = make_scene(CudaEmulatedBackend(), CacheSpec(1, 1, 64, dtype=dtype), [(q_len, 110)], q_heads=2)
    expected = scene.attend()[0]
    at = 110 - q_len + q_len // 2
    for value in (np.inf, np.nan):
        v = scene.values[0].copy()
        v[at, 0, 7] = value
        scene.backend.write(scene.storage, 0, scene.keys[0], v, scene.slots(0))
        out = scene.attend()[0]
        seen = slice(q_len // 2, None)
        assert not np.isfinite(out[seen, :, 7]).any()
        assert np.isfinite(out[: q_len // 2]).all()
        np.testing.assert_allclose(np.delete(out, 7, axis=2), np.delete(expected, 7, axis=2), rtol=0, atol=2e-2)


def test_a_workspace_stands_for_one_step_after_the_other():
    lengths = [(1, 300), (1, 17), (1, 1500)]
    scene = make_scene(backend_with(), HALF, lengths, q_heads=4)
    workspace = scene.backend.workspace(scene.storage, 4, max_sequences=4, max_tokens=6, max_length=1600)
    assert isinstance(workspace, Workspace)
    structs = []
    for order in ([0, 1, 2], [2], [1, 0]):
        step = scene.step(order)
        workspace.plan(step)
        q = np.full((6, 4, 64), np.nan, np.float32)
        q[: len(order)] = scene.q(order)
        out, lse = np.full((6, 4, 64), 7, np.float32), np.full((6, 4), 7, np.float32)
        counting = scene.backend._launcher
        counting.launched.clear()
        made = counting.made
        scene.backend.attend(scene.storage, 0, q, workspace, out=out, lse=lse)
        assert counting.made == made, "an attend over a workspace allocates nothing"
        structs.append([(name, grid) for name, grid, _ in counting.launched])
        expected, expected_lse = scene.attend(order)
        np.testing.assert_array_equal(out[: len(order)], expected)
        np.testing.assert_array_equal(lse[: len(order)], expected_lse)
        assert (out[len(order) :] == 7).all() and (lse[len(order) :] == 7).all()
    assert structs[0] == structs[1] == structs[2], "a graph replays the same launches"


def test_a_workspace_stores_at_the_slots_of_its_step():
    scene = make_scene(CudaEmulatedBackend(), HALF, [(2, 30), (1, 9)], q_heads=4)
    expected = scene.attend()[0]
    workspace = scene.backend.workspace(scene.storage, 4, max_sequences=2, max_tokens=5, max_length=40)
    workspace.plan(scene.step())
    k, v, q = (np.full((5, heads, 64), np.nan, np.float32) for heads in (2, 2, 4))
    k[:3] = np.concatenate([scene.keys[0][-2:], scene.keys[1][-1:]])
    v[:3] = np.concatenate([scene.values[0][-2:], scene.values[1][-1:]])
    q[:3] = scene.q()
    blank = np.zeros((3, 2, 64), np.float32)
    scene.backend.write(scene.storage, 0, blank, blank, scene.step().slots)
    before = scene.backend.read_blocks(scene.storage, [0])
    out = scene.backend.write_and_attend(scene.storage, 0, q, k, v, workspace)
    np.testing.assert_array_equal(out[:3], expected)
    np.testing.assert_array_equal(scene.backend.read_blocks(scene.storage, [0]), before)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([(1, 9)] * 3, "3 sequences"), ([(6, 9)], "6 new tokens"), ([(1, 41)], "41 tokens in its longest")],
)
def test_a_step_that_a_workspace_has_no_room_for(lengths, message):
    scene = make_scene(CudaEmulatedBackend(), HALF, lengths, q_heads=4)
    workspace = scene.backend.workspace(scene.storage, 4, max_sequences=2, max_tokens=5, max_length=40)
    with pytest.raises(ValueError, match=message):
        workspace.plan(scene.step())


def test_what_a_workspace_was_not_made_for():
    scene = make_scene(CudaEmulatedBackend(), HALF, [(1, 9)], q_heads=4)
    workspace = scene.backend.workspace(scene.storage, 4, max_sequences=2, max_tokens=5, max_length=40)
    q = np.zeros((5, 4, 64), np.float32)
    with pytest.raises(ValueError, match="window 8"):
        scene.backend.attend(scene.storage, 0, q, workspace, window=8)
    with pytest.raises(ValueError, match="rows of q 4"):
        scene.backend.attend(scene.storage, 0, q[:4], workspace)
    with pytest.raises(ValueError, match="q_heads is 3"):
        scene.backend.workspace(scene.storage, 3, max_sequences=2, max_tokens=5, max_length=40)
    with pytest.raises(ValueError, match="max_tokens is 0"):
        scene.backend.workspace(scene.storage, 4, max_sequences=2, max_tokens=0, max_length=40)


@pytest.mark.parametrize(("dtype", "head_dim", "sinks"), [("float16", 64, 0), ("float32", 64, 0), ("float16", 200, 5)])
def test_the_bounds_of_a_workspace_hold(dtype, head_dim, sinks):
    spec = CacheSpec(1, 1, head_dim, dtype=dtype)
    backend = CudaEmulatedBackend()
    storage = backend.allocate(spec, 600)
    rng = np.random.default_rng(0)
    workspace = backend.workspace(
        storage, 3, max_sequences=5, max_tokens=200, max_length=9000, sink_tokens=sinks, window=70 if sinks else None
    )
    for _ in range(60):
        q_lens = rng.multinomial(rng.integers(1, 201), rng.dirichlet(np.full(5, 0.3)))
        lengths = [(int(q), int(rng.integers(q, 9001))) for q in q_lens]
        tables = [rng.integers(1, 601, -(-kv // 16)).tolist() for _, kv in lengths]
        workspace.plan(make_step(tables, lengths, 16))  # what is too large for its place would be refused by NumPy


@pytest.mark.parametrize("length", [1, 129, 1000, 1024, 1025, 8192, 9000, 32768, 40_000])
def test_no_plan_has_more_spans_than_a_workspace_has_room_for(length):
    zero, table = np.zeros(1, np.int32), np.ones((1, -(-length // 16)), np.int32)
    for start in (0, 1, 127, 255):
        plan = make_plan(
            np.array([0, 1], np.int32), np.array([length], np.int32), zero + min(start, length - 1), zero,
            np.array([length - 1], np.int64), table, None, np.empty((0, 3), np.int32), 2**62, 0, 1, 16, 9, True, 128,
        )  # fmt: skip
        assert 1 <= len(plan.few) <= most_spans(length)


def test_eight_threads_make_the_first_call_at_once(monkeypatch, tmp_path):  # C11
    monkeypatch.setenv("PAGEDCACHE_CACHE_DIR", str(tmp_path))
    backend = CudaEmulatedBackend()
    barrier = threading.Barrier(8)

    def first(_):
        barrier.wait()
        return make_scene(backend, CacheSpec(1, 1, 16), [(1, 9)], q_heads=1).attend()[0].tobytes()

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(first, range(8)))
    assert found == {make_scene(backend, CacheSpec(1, 1, 16), [(1, 9)], q_heads=1).attend()[0].tobytes()}


def test_memo_serves_all_layers_of_a_step():
    scene = make_scene(backend_with(), HALF, [(1, 30)], q_heads=4)
    step = scene.step()
    scene.backend.attend(scene.storage, 0, scene.q(), step)
    made = scene.backend._launcher.made
    scene.backend.attend(scene.storage, 0, scene.q(), step)
    assert scene.backend._launcher.made == made


def test_an_out_that_is_not_aligned_to_pairs():
    scene = make_scene(backend_with(), HALF, [(1, 30), (20, 40)], q_heads=4)
    expected = scene.attend()[0].astype(np.float16)
    room = np.full(1 + expected.size, 7, np.float16)
    out = room[1:].reshape(expected.shape)
    scene.backend._launcher.launched.clear()
    scene.backend.attend(scene.storage, 0, scene.q().astype(np.float16), scene.step(), out=out)
    np.testing.assert_allclose(out.astype(np.float32), expected.astype(np.float32), rtol=0, atol=2e-3)
    structs = [np.frombuffer(raw, ATTEND)[0] for name, _, raw in scene.backend._launcher.launched if "f16" in name]
    assert structs and all(int(struct["out"]) % 4 == 0 for struct in structs)
    assert room[0] == 7


def test_every_kernel_has_room_in_shared_memory():
    for dtype in _kernels.STORED:
        for head_dim in _kernels.HEAD_DIMS:
            for v_head_dim in _kernels.HEAD_DIMS:
                sizes = (dtype, head_dim, v_head_dim)
                for full in (False, True):
                    kernels = [_kernels.few(*sizes, aligned=True, full=full)]
                    if dtype != "float32":
                        tiles = (64, 128) if max(head_dim, v_head_dim) <= 128 else (64,)
                        kernels += [_kernels.many(*sizes, rows, aligned=True, full=full) for rows in tiles]
                    assert max(kernel.shared for kernel in kernels) <= 99 << 10, sizes  # of every GPU from 8.0 on


def test_a_schedule_is_of_one_device():
    scene = make_scene(CudaEmulatedBackend(), HALF, [(1, 30)], q_heads=4)
    step = scene.step()
    scene.backend.attend(scene.storage, 0, scene.q(), step)
    other = backend_with()
    other.attend(scene.storage, 0, scene.q(), step)
    assert other._launcher.made > 1, "it made a schedule of its own"
    workspace = scene.backend.workspace(scene.storage, 4, max_sequences=1, max_tokens=1, max_length=40)
    with pytest.raises(ValueError, match="another backend's"):
        other.attend(scene.storage, 0, scene.q(), workspace)


def test_a_mask_is_planned_once_for_all_layers():
    scene = make_scene(backend_with(), HALF, [(3, 30)], q_heads=4)
    step = scene.step()
    mask = np.packbits(np.eye(3, dtype=np.uint8), bitorder="little")
    options = {"mask": mask, "mask_indptr": np.array([0, 2])}
    first = scene.backend.attend(scene.storage, 0, scene.q(), step, **options)
    made = scene.backend._launcher.made
    np.testing.assert_array_equal(scene.backend.attend(scene.storage, 0, scene.q(), step, **options), first)
    assert scene.backend._launcher.made == made
    mask[:] = np.packbits(np.ones(9, np.uint8), bitorder="little")  # another mask in the same array
    assert (scene.backend.attend(scene.storage, 0, scene.q(), step, **options) != first).any()


def test_slots_are_brought_to_the_device_once_for_all_layers():
    backend = backend_with()
    with KVCache(CacheSpec(3, 2, 64, dtype="float16"), num_blocks=9, backend=backend) as cache:
        step = cache.extend(cache.admit([range(30)]).ids, 30)
        q, k, v = (np.ones((30, heads, 64), np.float16) for heads in (4, 2, 2))
        made = []
        for layer in range(3):
            cache.attend(layer, q, k, v, step)
            made.append(backend._launcher.made)
        assert made[0] == made[1] == made[2]


def test_rows_are_merged_side_by_side():
    scene = make_scene(backend_with(), HALF, [(1, 900)], q_heads=4)
    scene.backend._launcher.launcher.multiprocessors = 100
    scene.attend()
    grids = [grid for name, grid, _ in scene.backend._launcher.launched if name == "merge"]
    assert grids == [2 * 16]  # KV heads, and rows of a tile


def test_threads_that_share_a_step_share_no_partial_results():
    backend = CudaEmulatedBackend()
    scene = make_scene(backend, HALF, [(1, 900)], q_heads=4)
    step = scene.step()
    queries = [scene.q() * factor for factor in (1, 2, 3, 4)]
    expected = [backend.attend(scene.storage, 0, q, scene.step()).tobytes() for q in queries]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            found = pool.map(lambda q: backend.attend(scene.storage, 0, q, step).tobytes(), queries)
            assert list(found) == expected


def test_a_workspace_for_decoding_keeps_no_room_for_prefill():
    scene = make_scene(CudaEmulatedBackend(), HALF, [(1, 9)], q_heads=4)
    few = scene.backend.workspace(scene.storage, 4, max_sequences=8, max_tokens=8, max_length=4096)
    many = scene.backend.workspace(scene.storage, 4, max_sequences=8, max_tokens=512, max_length=4096)
    spans, row = most_spans(4096), 64 * 2 * (64 + 2)  # bytes of a span's 16 rows
    assert few.nbytes < 1.5 * 8 * spans * row < many.nbytes


def test_e5m2_is_rounded_as_ml_dtypes_does():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    spec = CacheSpec(1, 1, 64, dtype="float8_e5m2")
    storage = CudaEmulatedBackend().allocate(spec, 64)
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32).reshape(-1, 1, 64)
    between = (every.view(np.uint32) + np.uint32(1 << 12)).view(np.float32)  # float16 does not have them
    for values in (every, between):
        CudaEmulatedBackend().write(storage, 0, values, values, np.arange(16, 16 + len(values)))
        found = storage.planes[0][0].reshape(-1, 64)[16 : 16 + len(values)]
        with np.errstate(all="ignore"):
            expected = values[:, 0].astype(ml_dtypes.float8_e5m2).view(np.uint8)
        number = ~np.isnan(values[:, 0])
        np.testing.assert_array_equal(found[number], expected[number])
        assert np.isnan(found.view(ml_dtypes.float8_e5m2).astype(np.float32)[~number]).all()


def test_offsets_beyond_two_to_the_31():
    """A pool of which only the pages that are used exist: int32 arithmetic anywhere would leave it."""
    spec = CacheSpec(1, 8, 128, dtype="float16")
    blocks = 2**31 // (16 * 8 * 128) * 3 // 2
    backend = CudaEmulatedBackend()
    try:
        storage = backend.allocate(spec, blocks)
    except MemoryError:
        pytest.skip("the system does not reserve so much address space")
    lengths = [(1, 40), (20, 30)]
    scene = make_scene(backend, spec, lengths, q_heads=8)
    tables = [[blocks, blocks // 2, blocks - 7], [3, blocks - 1]]
    far = replace(scene, storage=storage, tables=tables)
    for i in range(2):
        backend.write(storage, 0, scene.keys[i], scene.values[i], far.slots(i))
    np.testing.assert_array_equal(far.attend()[0], scene.attend()[0])
    backend.copy_blocks(storage, [[blocks, 5]])
    moved = replace(far, tables=[[5, *tables[0][1:]], tables[1]])
    np.testing.assert_array_equal(moved.attend()[0], scene.attend()[0])


def test_a_head_that_is_too_wide_is_refused_when_the_pool_is_made():
    with pytest.raises(UnsupportedByBackend, match=r"head size 257 \(has at most 256"):
        CudaEmulatedBackend().allocate(CacheSpec(1, 1, 257), 3)


def test_every_storage_type_and_list_has_its_kernel():
    names = {
        kernel.name
        for dtype in _kernels.STORED
        for kernel in (
            _kernels.few(dtype, 128, 128, aligned=True, full=False),
            _kernels.few(dtype, 100, 128, aligned=True, full=True),
            _kernels.store(dtype),
        )
    }
    assert len(names) == 3 * len(_kernels.STORED)
