"""What the primitives of CUDA kernels compute on the emulator."""

from typing import Any

import numpy as np
import pytest
from emulated_run import COPY, LANES, G, J, bf16, pairs, run

pytestmark = pytest.mark.usefixtures("cxx")


# ---- matrices


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_multiply(kind):
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-50, 50, shape).astype(np.float32) for shape in ((16, 16), (16, 8), (16, 8)))
    left, right = (x.astype(np.float16) if kind == "f16" else bf16(x) for x in (a, b))
    words = [c[G, 2 * J], c[G, 2 * J + 1], c[G + 8, 2 * J], c[G + 8, 2 * J + 1]]
    words = [word.view(np.uint32) for word in words]
    for row, column in ((G, 2 * J), (G + 8, 2 * J), (G, 2 * J + 8), (G + 8, 2 * J + 8)):
        words.append(pairs(left[row, column], left[row, column + 1]))
    words += [pairs(right[k, G], right[k + 1, G]) for k in (2 * J, 2 * J + 8)]
    body = f"""
        const u32* mine = in + pc_thread() * 10;
        float c[4];
        for (int e = 0; e < 4; e++) c[e] = pc_from_bits(mine[e]);
        pc_multiply(c, mine + 4, mine + 8, {kind}{{}});
        for (int e = 0; e < 4; e++) out[pc_thread() * 4 + e] = pc_bits(c[e]);
    """

    got = run(body, np.stack(words, 1), out=np.zeros((32, 4), np.float32))

    product = c + a @ b
    rows, columns = G[:, None] + [0, 0, 8, 8], 2 * J[:, None] + [0, 1, 0, 1]
    np.testing.assert_array_equal(got, product[rows, columns])


def test_multiply_takes_subnormal_and_infinite_numbers():
    x = np.array([2**-24, -(2**-14), np.inf, 65504], np.float16)
    body = """
        float c[4] = {};
        const int row = pc_thread() / 4;  // a is diagonal, b is full of ones
        u32 a[4] = {};
        if (row / 2 == pc_thread() % 4) a[0] = in[row % 4] << row % 2 * 16;
        const u32 b[2] = {0x3c003c00, 0x3c003c00};
        pc_multiply(c, a, b, f16{});
        out[pc_thread()] = pc_bits(c[0]);
    """

    got = run(body, x.view(np.uint16).astype(np.uint32), out=np.zeros(32, np.float32))

    np.testing.assert_array_equal(got, np.repeat(np.tile(x.astype(np.float32), 2), 4))


@pytest.mark.parametrize("transposed", [False, True])
def test_load_matrices(transposed):
    matrices = np.arange(4 * 8 * 8, dtype=np.uint16).reshape(4, 8, 8)
    body = f"""
        u32* shared = (u32*)pc_shared();
        for (int i = 0; i < 4; i++) shared[pc_thread() * 4 + i] = in[pc_thread() * 4 + i];
        pc_sync_warp();
        pc_load_matrices{"_transposed" * transposed}(out + pc_thread() * 4, shared + pc_thread() * 4);
    """

    got = run(body, matrices.view(np.uint32), out=np.zeros((32, 4), np.uint32))

    seen = matrices.transpose(0, 2, 1) if transposed else matrices
    np.testing.assert_array_equal(got, pairs(seen[:, G, 2 * J], seen[:, G, 2 * J + 1]).T)


# ---- numbers


def test_float_of_every_f16():
    every = np.arange(1 << 16, dtype=np.uint16)
    body = "for (int i = pc_thread(); i < 1 << 16; i += 32) out[i] = pc_bits(pc_float(f16{(u16)in[i]}));"

    got = run(body, every.astype(np.uint32), out=np.zeros(1 << 16, np.float32))

    np.testing.assert_array_equal(got, every.view(np.float16).astype(np.float32))


def rounding_cases(every: np.ndarray) -> np.ndarray:
    """Return numbers, what lies halfway between two of them, and the floats next to it."""
    middle = (every[:-1] + (every[1:] - every[:-1]) / 2).astype(np.float32)
    cases = np.concatenate(
        [every, middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))]
    )
    return np.concatenate([cases, -cases])


def pack(kind: str, cases: np.ndarray) -> np.ndarray:
    """Return what pc_pack makes of each, as u16; the other halves are checked to be those of its negative."""
    body = f"""
        for (int i = pc_thread(); i < {len(cases)}; i += 32) {{
            const float x = pc_from_bits(in[i]);
            out[i] = pc_pack(x, -x, {kind}{{}});
        }}
    """
    got = run(body, cases.astype(np.float32), out=np.zeros(len(cases), np.uint32))
    np.testing.assert_array_equal((got >> 16 ^ got)[~np.isnan(cases)] & 0xFFFF, 0x8000)
    return (got & 0xFFFF).astype(np.uint16)


def test_pack_f16():
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    beyond = np.array([65519.996, 65520, 1e6, np.inf, 2**-25, 1e-10, 1e-40], np.float32)
    cases = np.concatenate([rounding_cases(finite), beyond])

    got = pack("f16", cases)

    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, cases.astype(np.float16).view(np.uint16))


def test_pack_bf16():
    finite = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32)
    cases = np.concatenate([rounding_cases(finite), np.array([3.4e38, np.inf, 1e-45], np.float32)])

    np.testing.assert_array_equal(pack("bf16", cases), bf16(cases))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_pack_makes_one_nan_of_all(kind):
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    np.testing.assert_array_equal(pack(kind, nans), 0x7FFF)


def test_subtract_pairs():
    x, y = np.random.default_rng(2).integers(0, 1 << 16, (2, 4096)).astype(np.uint16).view(np.float16)
    x[:4], y[:4] = [1, 2**-24, 65504, np.inf], [2**-12, 2**-24, -65504, 1]
    body = "for (int i = pc_thread(); i < 2048; i += 32) out[i] = pc_subtract_pairs(in[i], in[2048 + i]);"

    got = run(body, np.concatenate([x, y]).view(np.uint32), out=np.zeros(2048, np.uint32))

    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got.view(np.float16), x - y)


def test_permute():
    body = "if (pc_thread() < 4) out[pc_thread()] = pc_permute(0x33228100, 0x77665544, in[pc_thread()]);"
    got = run(body, np.array([0x3210, 0x7654, 0x0741, 0xBA98], np.uint32), out=np.zeros(4, np.uint32))
    np.testing.assert_array_equal(got, [0x33228100, 0x77665544, 0x00774481, 0x0000FF00])


def floats(expression: str, *columns: Any) -> np.ndarray:
    """Return an expression of floats x and y, for up to 32 of them."""
    given = np.zeros((2, 32), np.float32)
    for i, column in enumerate(columns):
        given[i, : len(column)] = column
    body = f"""
        const float x = pc_from_bits(in[pc_thread()]), y = pc_from_bits(in[32 + pc_thread()]);
        out[pc_thread()] = {expression};
    """
    return run(body, given, out=np.zeros(32, np.uint32))[: len(columns[0])]


def test_round():
    x = [0.5, 1.5, 2.5, -0.5, -1.5, 2.4999998, 1e10, -1e10, np.nan, -np.inf]
    got = floats("(u32)pc_round(x)", x).view(np.int32)
    np.testing.assert_array_equal(got, [0, 2, 2, 0, -2, 2, 2**31 - 1, -(2**31), 0, -(2**31)])


def test_max():
    got = floats("pc_bits(pc_max(x, y))", [1, 2, np.nan, 3, -0.0, 0.0, -np.inf], [2, 1, 3, np.nan, 0.0, -0.0, -np.inf])
    np.testing.assert_array_equal(got.view(np.float32), [2, 2, 3, 3, 0, 0, -np.inf])
    assert not np.signbit(got.view(np.float32)[4:6]).any()


def test_functions():
    x = np.array([0.3, 1, 5.25, 90], np.float32)
    y = np.array([7, 3, -1.5, 11], np.float32)
    np.testing.assert_array_equal(floats("pc_bits(pc_divide(x, y))", x, y).view(np.float32), x / y)
    np.testing.assert_allclose(floats("pc_bits(pc_exp2(x))", x).view(np.float32), np.exp2(x), rtol=3e-7)
    np.testing.assert_allclose(floats("pc_bits(pc_log2(x))", x).view(np.float32), np.log2(x), rtol=3e-7)
    np.testing.assert_allclose(floats("pc_bits(pc_tanh(x))", x).view(np.float32), np.tanh(x), rtol=3e-7)


def test_functions_at_the_ends():
    got = floats("pc_bits(pc_exp2(x))", [-np.inf, -126, -127, 128, np.nan]).view(np.float32)
    np.testing.assert_array_equal(got, [0, 2.0**-126, 0, np.inf, np.nan])
    got = floats("pc_bits(pc_log2(x))", [0, 2.0**-127, -1, np.inf]).view(np.float32)
    np.testing.assert_array_equal(got, [-np.inf, -np.inf, np.nan, np.inf])


def test_high_product():
    got = run("*out = pc_high_product(in[0], in[1]);", np.array([0xFFFFFFFF, 0x80000001], np.uint32), out=np.uint32(0))
    assert got == 0xFFFFFFFF * 0x80000001 >> 32


# ---- lanes, places, copies


def test_lanes():
    body = """
        const int lane = pc_thread();
        const float x = lane;
        out[lane] = (u32)pc_exchange(x, 5);
        out[32 + lane] = (u32)pc_from_lane(x, lane / 2);
        out[64 + lane] = pc_any(lane == 17);
        out[96 + lane] = pc_any(false);
    """

    got = run(body, out=np.full((4, 32), 99, np.uint32), order="random")

    np.testing.assert_array_equal(got, [LANES ^ 5, LANES // 2, LANES * 0 + 1, LANES * 0])


def test_places():
    body = """
        Vector* places = (Vector*)out + pc_block() * 64 + pc_thread();
        *places = Vector{{(u32)pc_thread(), (u32)pc_threads(), (u32)pc_block(), (u32)pc_blocks()}};
    """

    got = run(body, out=np.zeros((5, 64, 4), np.uint32), threads=64, grid=5)

    thread, block = np.arange(64), np.arange(5)[:, None]
    np.testing.assert_array_equal(got, np.stack(np.broadcast_arrays(thread, 64, block, 5), -1))


def test_shared_memory_is_full_of_nan_in_each_block():
    body = """
        float* shared = (float*)pc_shared();
        out[pc_block() * 32 + pc_thread()] = shared[pc_thread()] != shared[pc_thread()];
        shared[pc_thread()] = 1;
    """
    assert run(body, out=np.zeros((3, 32), np.uint32), grid=3, workers=1).all()


@pytest.mark.parametrize("late", [True, False])
def test_copies(late):
    given = np.arange(1, 129, dtype=np.uint32)

    got = run(COPY, given, out=np.zeros(192, np.uint32), late=late)

    vectors, words = given.copy(), given[:32].copy()
    vectors[28:32] = words[7] = 0  # not valid
    np.testing.assert_array_equal(got[:128], vectors)
    np.testing.assert_array_equal(got[128:160], 0xFFFFFFFF if late else words)
    np.testing.assert_array_equal(got[160:], words)
