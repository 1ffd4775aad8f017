"""Small scenes that together go through every branch of the kernels; `first_failure` says what is wrong with some."""

from dataclasses import replace

import numpy as np

from pagedcache.backends.cuda._backend import KernelBackend
from pagedcache.backends.cuda_emulated._backend import EmulatedGpu
from pagedcache.backends.cuda_emulated._interpreter import PtxInterpreter
from pagedcache.spec import CacheSpec
from pagedcache.testing._mixtures import random_tree
from pagedcache.testing.scenes import make_scene

FEW = [(1, 45), (1, 300), (4, 37)]
MANY = [(40, 77)]
SLOPES = np.array([0.5, 0.1, 0, 0.3], np.float32)
LOGITS = np.array([0.5, -3, -np.inf, 2], np.float32)


class EmulatedBackend(KernelBackend):
    """The kernels as they are at the moment, on an emulator with any options."""

    name = "cuda-emulated"

    def __init__(self, **options):
        super().__init__(EmulatedGpu(**options))


class PtxBackend(KernelBackend):
    """The kernels as they are at the moment, compiled by NVRTC, their PTX interpreted."""

    name = "cuda-ptx"

    def __init__(self):
        super().__init__(PtxInterpreter())


def scene(backend, lengths, dtype="float16", **more):
    return make_scene(backend, CacheSpec(1, 2, 64, dtype=dtype, block_size=8), lengths, q_heads=4, poison=0xFF, **more)


def decoding(backend):
    scene(backend, FEW).check()


def prefill(backend):
    scene(backend, MANY).check()


def prefill_of_wide_tiles(backend):
    scene(backend, [(70, 90)], "bfloat16").check()


def windows(backend):
    scene(backend, FEW).check(window=9, sink_tokens=3)
    scene(backend, MANY).check(window=9, sink_tokens=3)


def other_variants(backend):
    scene(backend, FEW).check(sink_logits=LOGITS, softcap=2.0, alibi_slopes=SLOPES)


def trees(backend):
    made = scene(backend, [(6, 40)])
    mask, positions = random_tree(np.random.default_rng(3), 6, 34)
    replace(made, masks=[mask], positions=[positions]).check()


def shared_prefixes(backend):
    scene(backend, [(1, 45), (2, 50), (1, 60)], shared=[(0, 3, 4)]).check(sink_logits=LOGITS)


def codes(backend):
    for dtype in ("int8", "float8_e4m3", "float8_e5m2"):
        scene(backend, FEW, dtype).check()
        scene(backend, MANY, dtype).check()


def large_queries_of_codes(backend):
    scene(backend, [(1, 45)], "int8", q_scale=1e6).check(scale=1e-6)


def stored_codes(backend):
    """Codes and scales are those of the rule, number by number."""
    spec = CacheSpec(1, 1, 16, dtype="float8_e4m3")
    storage = backend.allocate(spec, 1)
    steps = np.concatenate([np.linspace(-448, 448, 241), [0.001, -0.01, 0.0146, 17, 18.5, 448, 448]]).astype(np.float32)
    rows = np.column_stack([steps.reshape(-1, 8), np.full((31, 8), 448, np.float32)])[:, None]
    for begin in (0, 15):
        part = rows[begin : begin + 16]
        backend.write(storage, 0, part, part, np.arange(16, 32))
        values = np.array([code_value(code) for code in range(127)])
        nearest = values[np.abs(np.abs(part[..., None]) - values).argmin(axis=-1)] * np.sign(part)
        found = np.vectorize(code_value)(storage.planes[0][0].view(np.uint8)[1])
        error, best = np.abs(found - part), np.abs(nearest - part)
        assert (error <= best).all(), "a code is not the nearest one"


def code_value(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if code & 128 else size


def float_storage(backend):
    scene(backend, [(1, 45), (9, 20)], "float32").check()


def infinite_values(backend):
    for q_len in (6, 20):
        made = scene(backend, [(q_len, 45)])
        v = made.values[0].copy()
        v[45 - q_len // 2] = np.inf
        backend.write(made.storage, 0, made.keys[0], v, made.slots(0))
        out = made.attend()[0]
        assert np.isfinite(out[: q_len // 2]).all(), "a query has a value that it does not see"


def odd_heads(backend):
    spec = CacheSpec(1, 2, 59, v_head_dim=24, dtype="float16", block_size=3)
    make_scene(backend, spec, [(1, 45), (20, 33)], q_heads=4).check()


def moves(backend):
    made = scene(backend, [(1, 45)])
    records = backend.read_blocks(made.storage, made.tables[0])
    keys = made.storage.view(0)[0][made.tables[0]]
    assert (records[:, 0, : keys[0].nbytes] == keys.view(np.uint8).reshape(len(keys), -1)).all(), "a record is wrong"
    hnd = backend.allocate(replace_layout(made.spec), 9)
    backend.write_blocks(hnd, np.arange(1, 7), records)
    backend.copy_slots(hnd, np.arange(8, 16), np.arange(64, 72))
    found = backend.read_blocks(hnd, [8, *range(2, 7)])
    assert (found == records).all(), "records that went through another layout differ"


def replace_layout(spec):
    return CacheSpec(1, spec.kv_heads, spec.head_dim, dtype=spec.dtype, block_size=spec.block_size, layout="HND")


def far_blocks(backend):
    """Offsets beyond 2**31 elements, in a pool of which only a few pages exist."""
    spec = CacheSpec(1, 8, 128, dtype="float16")
    blocks = 2**31 // (16 * 8 * 128) * 3 // 2
    near = make_scene(backend, spec, [(1, 40)], q_heads=8)
    far = replace(near, storage=backend.allocate(spec, blocks), tables=[[blocks, blocks // 2, blocks - 7]])
    backend.write(far.storage, 0, far.keys[0], far.values[0], far.slots(0))
    np.testing.assert_array_equal(far.attend()[0], near.attend()[0])


SCENES = (
    decoding, prefill, windows, other_variants, codes, trees, shared_prefixes, prefill_of_wide_tiles, float_storage,
    infinite_values, stored_codes, large_queries_of_codes, odd_heads, moves,
)  # fmt: skip


def first_failure(backend, scenes=SCENES):
    """Return which scene fails and how, or None."""
    for each in scenes:
        try:
            each(backend)
        except Exception as error:
            return f"{each.__name__}: {type(error).__name__} {str(error)[:300]}"
    return None


# Under a sanitizer kernels are many times slower: a few blocks of threads of each.


def small_few(backend):
    spec = CacheSpec(1, 1, 16, dtype="float16", block_size=8)
    make_scene(backend, spec, [(2, 300)], q_heads=2).check(sink_logits=LOGITS[:2])


def small_many(backend):
    spec = CacheSpec(1, 1, 16, dtype="float16", block_size=8)
    make_scene(backend, spec, [(20, 170)], q_heads=1).check()
    made = make_scene(backend, spec, [(20, 70)], q_heads=1)
    positions = np.arange(50, 70)
    positions[-1] -= 1  # so that they are looked up
    replace(made, positions=[positions]).check(window=40, alibi_slopes=SLOPES[:1])


def small_codes(backend):
    spec = CacheSpec(1, 1, 32, dtype="int8", block_size=8)
    make_scene(backend, spec, [(1, 1100), (20, 70)], q_heads=1).check()


def small_float(backend):
    make_scene(backend, CacheSpec(1, 1, 16, block_size=8), [(1, 70)], q_heads=1).check()


SMALL = {each.__name__: each for each in (small_few, small_many, small_codes, small_float)}
