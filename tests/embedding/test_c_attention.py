"""write, plan_make, attend and copy_blocks over the caller's memory: the bits of backend cpu, whatever is asked for."""

import ctypes
import threading

import ml_dtypes
import numpy as np
import pytest
from c_cache import options_of
from c_table import DTYPES, STORED, CError, Layer, StepArrays, address, api, number, require

from pagedcache import CacheSpec, Step
from pagedcache.backends.cpu import CpuBackend

HEADS, Q_HEADS, DIM, V_DIM, BLOCK, BLOCKS = 2, 6, 32, 64, 8, 40
KINDS = [(dtype, layout) for dtype in DTYPES for layout in ("NHD", "HND")]
INT_MAX = 2**31 - 1


class Pool:
    """A layer in arrays of the test's own, described for C and lent to backend cpu."""

    def __init__(self, dtype="float32", layout="NHD"):
        order = (BLOCK, HEADS) if layout == "NHD" else (HEADS, BLOCK)
        stored = STORED[DTYPES.index(dtype)]
        self.arrays = [np.zeros((BLOCKS + 1, *order, width), stored) for width in (DIM, V_DIM)]
        if dtype in ("int8", "float8_e4m3"):
            self.arrays += [np.zeros((BLOCKS + 1, *order), np.float32) for _ in range(2)]
        pointers = [*map(address, self.arrays), None, None][:4]
        kinds = DTYPES.index(dtype), ["NHD", "HND"].index(layout)
        self.layer = Layer(*pointers, BLOCKS, BLOCK, HEADS, DIM, V_DIM, *kinds)
        spec = CacheSpec(
            layers=1, kv_heads=HEADS, head_dim=DIM, v_head_dim=V_DIM, block_size=BLOCK, dtype=dtype, layout=layout
        )
        self.backend = CpuBackend(threads=1)
        self.storage = self.backend.allocate(spec, BLOCKS)
        self.input = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}.get(dtype, np.float32)
        poison = 0x7F if dtype == "float8_e4m3" else 0xFF
        for array in self.arrays + list(self.storage.planes[0]):
            array.view(np.uint8)[1:] = poison

    def write(self, k, v, slots):
        require(api.write(ctypes.byref(self.layer), address(k), address(v), number(k), address(slots), len(slots), 2))
        self.backend.write(self.storage, 0, k, v, slots)


def plan_of(layer, step, q_heads=Q_HEADS):
    plan = ctypes.c_void_p()
    require(api.plan_make(ctypes.byref(layer), ctypes.byref(step), q_heads, ctypes.byref(plan)))
    return plan


def attend(layer, step, q, out, lse=None, **options):
    plan = plan_of(layer, step, q.shape[1])
    try:
        run(layer, plan, q, out, lse, **options)
    finally:
        api.plan_free(plan)
    return out


def run(layer, plan, q, out, lse=None, **options):
    chosen = ctypes.byref(options_of(**options))
    require(
        api.attend(ctypes.byref(layer), plan, address(q), number(q), address(out), number(out), address(lse), chosen)
    )


def batch(rng, with_starts):
    """A ragged batch over shuffled blocks: decode, prompts, padded rows, an empty one."""
    counts, lengths = np.array([1, 9, 1, 0, 4]), np.array([37, 40, 1, 12, 19])
    pads = np.array([0, 3, 0, 5, 2], np.int32)
    starts = np.where(with_starts, np.array([8, 3, 0, 5, 2]), 0).astype(np.int32)
    needed = -(-lengths // BLOCK)
    ids = rng.permutation(BLOCKS)[: needed.sum()] + 1
    tables = np.full((5, 7), -1, np.int32)
    for row, mine in enumerate(np.split(ids, np.cumsum(needed)[:-1])):
        tables[row, : len(mine)] = mine
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return tables, lengths.astype(np.int32), indptr, pads, starts


def all_slots(tables, lengths):
    return np.concatenate([
        tables[row, np.arange(n) // BLOCK] * np.int64(BLOCK) + np.arange(n) % BLOCK for row, n in enumerate(lengths)
    ])  # fmt: skip


HEAD_NUMBERS = np.linspace(-1, 1, Q_HEADS, dtype=np.float32)
ASKED = {
    "nothing": {},
    "window": {"window": 7},
    "window with sinks": {"window": 7, "sink_tokens": 3},
    "every rule": {"scale": 0.2, "softcap": 3.0, "alibi_slopes": HEAD_NUMBERS, "sink_logits": HEAD_NUMBERS},
    "exact": {"precision": "exact"},
    "tree": {"mask": True, "window": 20},
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize(("dtype", "layout"), KINDS)
def test_the_bits_of_backend_cpu(dtype, layout, asked):
    rng, pool, rules = np.random.default_rng(7), Pool(dtype, layout), dict(ASKED[asked])
    tables, lengths, indptr, pads, starts = batch(rng, with_starts="window" in rules)
    slots = all_slots(tables, lengths)
    k, v = (rng.standard_normal((len(slots), HEADS, width), np.float32).astype(pool.input) for width in (DIM, V_DIM))
    pool.write(k, v, slots)
    assert [a.tobytes() for a in pool.arrays] == [a.tobytes() for a in pool.storage.planes[0]]

    tokens = int(indptr[-1])
    positions = np.concatenate(
        [np.arange(n - c, n) - p for n, c, p in zip(lengths, np.diff(indptr), pads, strict=True)]
    )
    if rules.pop("mask", False):
        mask_indptr = np.array([0, 0, 11, 11, 11, 13])
        rules |= {"mask": rng.integers(0, 256, 13).astype(np.uint8), "mask_indptr": mask_indptr}
        positions += rng.integers(-2, 1, tokens)
    q = rng.standard_normal((tokens, Q_HEADS, DIM), np.float32).astype(pool.input)
    theirs = Step.from_arrays(
        tables, lengths, indptr, block_size=BLOCK, positions=positions, kv_pads=pads, kv_starts=starts
    )
    want_lse, lse = np.empty((2, tokens, Q_HEADS), np.float32)
    want = pool.backend.attend(pool.storage, 0, q, theirs, lse=want_lse, **rules)

    given = {"kv_pads": pads, "kv_starts": starts}
    names = ("mask", "mask_indptr", "window", "sink_tokens")
    given |= {name: rules.pop(name) for name in names if name in rules}
    if "mask" in given:
        given["positions"] = positions  # elsewhere they are derived
    step = step_over(tables, lengths, indptr, **given)
    out = np.empty((tokens, Q_HEADS, V_DIM), pool.input)
    attend(pool.layer, step, q, out, lse, exact=rules.pop("precision", "") == "exact", **rules)
    assert out.tobytes() == want.tobytes()
    assert lse.tobytes() == want_lse.tobytes()


def full_pool():
    """A pool whose block i holds the number i, as float16 in float32 storage."""
    pool, slots = Pool(), np.arange(BLOCK, (BLOCKS + 1) * BLOCK)
    k = np.broadcast_to((slots // BLOCK)[:, None, None], (len(slots), HEADS, DIM)).astype(np.float16)
    pool.write(k, np.concatenate([k, k], axis=2), slots)
    return pool


def test_copy_blocks():
    pool = full_pool()
    pairs = np.array([[1, 5], [2, 6], [1, 7]], np.int32)
    require(api.copy_blocks(ctypes.byref(pool.layer), 1, address(pairs), 3, 0))
    for array in pool.arrays:
        assert [int(array[block, 0, 0, 0]) for block in (4, 5, 6, 7, 8)] == [4, 1, 2, 1, 8]


def step_over(tables, lengths, indptr, **more):
    arrays = tables, indptr, lengths
    step = StepArrays(len(lengths), int(indptr[-1]), tables.shape[1], 0, *map(address, arrays), *[None] * 6, 0, 0)
    for name, value in more.items():
        setattr(step, name, address(value) if isinstance(value, np.ndarray) else value)
    step.arrays = (*arrays, *more.values())  # kept alive
    return step


def test_one_plan_serves_several_threads_at_once():
    pool, tables = full_pool(), np.arange(1, 41, dtype=np.int32).reshape(8, 5)
    step = step_over(tables, np.full(8, 40, np.int32), np.arange(9, dtype=np.int32))
    plan, q = plan_of(pool.layer, step), np.ones((8, Q_HEADS, DIM), np.float32)
    want = attend(pool.layer, step, q, np.empty((8, Q_HEADS, V_DIM), np.float32))
    outs = np.zeros((4, *want.shape), np.float32)
    faults = []

    def many(out):
        try:
            for _ in range(200):
                run(pool.layer, plan, q, out, threads=2)
        except CError as fault:
            faults.append(fault)

    threads = [threading.Thread(target=many, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    api.plan_free(plan)
    assert not faults and all(out.tobytes() == want.tobytes() for out in outs)


def test_no_tokens_and_no_sequences():
    pool = Pool()
    for rows in (0, 2):
        step = step_over(np.zeros((rows, 1), np.int32), np.zeros(rows, np.int32), np.zeros(rows + 1, np.int32))
        plan = plan_of(pool.layer, step)
        require(api.attend(ctypes.byref(pool.layer), plan, None, 0, None, 0, None, None))
        api.plan_free(plan)
    require(api.write(ctypes.byref(pool.layer), None, None, 0, None, 0, 0))


def test_no_visible_key():
    pool = Pool()
    step = step_over(np.array([[3]], np.int32), np.array([2], np.int32), np.array([0, 1], np.int32),
                     kv_pads=np.array([2], np.int32))  # fmt: skip
    q, lse = np.ones((1, Q_HEADS, DIM), np.float32), np.ones((1, Q_HEADS), np.float32)
    out = attend(pool.layer, step, q, np.ones((1, Q_HEADS, V_DIM), np.float32), lse)
    assert not out.any() and (lse == -np.inf).all()


def test_more_heads_than_need_no_memory():
    heads = 300
    k = np.ones((2, BLOCK, 1, DIM), np.float32)
    layer = Layer(address(k), address(k), None, None, 1, BLOCK, 1, DIM, 0, 0, 0)
    step = step_over(np.array([[1]], np.int32), np.array([2], np.int32), np.array([0, 1], np.int32))
    q, out, sinks = np.ones((1, heads, DIM), np.float32), np.empty((1, heads, DIM), np.float32), np.zeros(heads)
    attend(layer, step, q, out, sink_logits=np.full(heads, -np.inf, np.float32), alibi_slopes=sinks.astype(np.float32))
    assert (out == 1).all()
