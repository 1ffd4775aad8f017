"""Single instructions of PTX: the interpreter against Python's integers and NumPy's floats."""

import numpy as np
import pytest
from small_kernels import empty, run

pytestmark = [pytest.mark.cuda_offline, pytest.mark.usefixtures("nvrtc")]

EDGES = [0, 1, 2, 3, 7, 31, 32, 33, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32 - 2, 0x9ABCDEF0]
LONG_EDGES = [*EDGES, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0, 2**64 - 10**12]
REGISTER = {"b32": "r", "u32": "r", "s32": "r", "s64": "l", "u64": "l"}


def signed(x, bits=32):
    return x - 2**bits if x >> (bits - 1) else x


def truncated(x, y):
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def bytes_chosen(x, y, selector):
    have = (x | y << 32).to_bytes(8, "little")
    nibbles = [selector >> 4 * i & 15 for i in range(4)]
    return int.from_bytes(bytes(have[n & 7] if n < 8 else 255 * (have[n & 7] >> 7) for n in nibbles), "little")


def field(x, begin, count):
    return x >> (begin & 255) & ((1 << (count & 255)) - 1)


UNARY = {
    "popc.b32": lambda x: x.bit_count(),
    "clz.b32": lambda x: 32 - x.bit_length(),
    "brev.b32": lambda x: int(f"{x:032b}"[::-1], 2),
    "not.b32": lambda x: ~x,
    "abs.s32": lambda x: abs(signed(x)),
    "neg.s32": lambda x: -x,
}
BINARY = {
    "add.s32": lambda x, y: x + y,
    "sub.s32": lambda x, y: x - y,
    "mul.lo.s32": lambda x, y: x * y,
    "mul.hi.u32": lambda x, y: x * y >> 32,
    "mul.hi.s32": lambda x, y: signed(x) * signed(y) >> 32,
    "div.u32": lambda x, y: x // y,
    "div.s32": lambda x, y: truncated(signed(x), signed(y)),
    "rem.u32": lambda x, y: x % y,
    "rem.s32": lambda x, y: signed(x) - truncated(signed(x), signed(y)) * signed(y),
    "min.s32": lambda x, y: min(signed(x), signed(y)),
    "max.u32": lambda x, y: max(x, y),
    "and.b32": lambda x, y: x & y,
    "or.b32": lambda x, y: x | y,
    "xor.b32": lambda x, y: x ^ y,
    "shl.b32": lambda x, y: x << min(y, 32),
    "shr.u32": lambda x, y: x >> min(y, 32),
    "shr.s32": lambda x, y: signed(x) >> min(y, 32),
    "mul.lo.s64": lambda x, y: x * y,
    "mul.hi.u64": lambda x, y: x * y >> 64,
    "mul.hi.s64": lambda x, y: signed(x, 64) * signed(y, 64) >> 64,
    "div.s64": lambda x, y: truncated(signed(x, 64), signed(y, 64)),
    "rem.s64": lambda x, y: signed(x, 64) - truncated(signed(x, 64), signed(y, 64)) * signed(y, 64),
    "div.u64": lambda x, y: x // y,
    "max.s64": lambda x, y: max(signed(x, 64), signed(y, 64)),
}
TERNARY = {
    "mad.lo.s32": lambda x, y, z: x * y + z,
    "shf.l.wrap.b32": lambda x, y, z: (y << 32 | x) << (z & 31) >> 32,
    "shf.r.wrap.b32": lambda x, y, z: (y << 32 | x) >> (z & 31),
    "shf.l.clamp.b32": lambda x, y, z: (y << 32 | x) << min(z, 32) >> 32,
    "shf.r.clamp.b32": lambda x, y, z: (y << 32 | x) >> min(z, 32),
    "bfe.u32": field,
    "prmt.b32": bytes_chosen,
}


@pytest.mark.parametrize("opcode", [*UNARY, *BINARY, *TERNARY])
def test_integers(opcode):
    base, kind = opcode.split(".")[0], opcode.split(".")[-1]
    arity = 1 if opcode in UNARY else 2 if opcode in BINARY else 3
    long, letter = kind.endswith("64"), REGISTER[kind]
    expect = (UNARY | BINARY | TERNARY)[opcode]
    random, edges = np.random.default_rng(0), LONG_EDGES if long else EDGES
    x, y, z = (random.permutation(np.tile(np.array(edges, "u8" if long else "u4"), 16))[:256] for _ in range(3))
    if base in ("div", "rem"):
        y[y == 0] = 5
    operands = ", ".join(f"%{i}" for i in range(arity + 1))
    inputs = ", ".join(f'"{letter}"({name}[i])' for name in "abc"[:arity])
    out = run(
        f'asm volatile("{opcode} {operands};" : "={letter}"(d[i]) : {inputs});', x, y, z, empty(x.dtype, 256), grid=4
    )
    expected = [expect(*map(int, values[:arity])) % 2 ** (64 if long else 32) for values in zip(x, y, z, strict=True)]
    np.testing.assert_array_equal(out, np.array(expected, x.dtype))


def test_fields_that_are_inserted_and_signed():
    x = np.random.default_rng(0).integers(0, 2**32, 64, np.uint32)
    begin, count = np.arange(64, dtype=np.uint32) % 33, np.arange(64, dtype=np.uint32) * 7 % 33
    body = """
        asm volatile("bfi.b32 %0, %1, 0x55555555, %2, %3;" : "=r"(d[i]) : "r"(a[i]), "r"(b[i]), "r"(c[i]));
        asm volatile("bfe.s32 %0, %1, %2, %3;" : "=r"(d[i + 64]) : "r"(a[i]), "r"(b[i]), "r"(c[i]));"""
    out = run(body, x, begin, count, empty(size=128))
    for i, (value, at, n) in enumerate(zip(x.tolist(), begin.tolist(), count.tolist(), strict=True)):
        mask = ((1 << n) - 1) << at
        assert out[i] == (0x55555555 & ~mask | value << at & mask) % 2**32
        shifted = signed(value) >> at  # beyond its end a number goes on with its sign
        wanted = shifted & ((1 << n) - 1)
        sign = signed(value) >> min(at + n - 1, 31) & 1 if n else 0
        assert out[i + 64] == (wanted - (sign << n)) % 2**32


def test_truth_tables():
    x, y, z = (np.random.default_rng(i).integers(0, 2**32, 64, np.uint32) for i in range(3))
    body = 'asm volatile("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(d[i]) : "r"(a[i]), "r"(b[i]), "r"(c[i]));'
    np.testing.assert_array_equal(run(body, x, y, z, empty()), x & y | ~x & z)


def test_products_that_are_wide():
    x = np.array(EDGES * 4, np.uint32)
    y = x[::-1].copy()
    body = """
        asm volatile("mul.wide.u32 %0, %1, %2;" : "=l"(c[i]) : "r"(a[i]), "r"(b[i]));
        asm volatile("mad.wide.s32 %0, %1, %2, %3;" : "=l"(c[i + 64]) : "r"(a[i]), "r"(b[i]), "l"(c[i]));"""
    out = run(body, x, y, empty("u8", 128))
    unsigned = x.astype(np.uint64) * y
    np.testing.assert_array_equal(out[:64], unsigned)
    products = x.view(np.int32).astype(np.int64) * y.view(np.int32)
    np.testing.assert_array_equal(out[64:], products.view(np.uint64) + unsigned)


# ---- floats

SPECIAL = np.array(
    [0, -0.0, 1, -1, 1e-40, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan, 0.1, 65520, 6e-8, 2.5, -3.5], "f4"
)


def pairs():
    x = np.tile(SPECIAL, 16)
    return x, np.repeat(SPECIAL, 16)


def flushed(x):
    return np.where(np.abs(x) < np.finfo("f4").smallest_normal, np.copysign(np.float32(0), x), x)


FLOATS = {
    "add.f32": np.add,
    "mul.f32": np.multiply,
    "div.rn.f32": np.divide,
    "min.f32": np.fmin,
    "max.f32": np.fmax,
    "add.ftz.f32": lambda x, y: flushed(flushed(x) + flushed(y)),
    "mul.ftz.f32": lambda x, y: flushed(flushed(x) * flushed(y)),
    "max.ftz.f32": lambda x, y: np.fmax(flushed(x), flushed(y)),
    "copysign.f32": lambda x, y: np.copysign(y, x),
}


@pytest.mark.parametrize("opcode", FLOATS)
def test_floats(opcode):
    x, y = pairs()
    out = run(
        f'asm volatile("{opcode} %0, %1, %2;" : "=f"(c[i]) : "f"(a[i]), "f"(b[i]));', x, y, empty("f4", 256), grid=4
    )
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, FLOATS[opcode](x, y))


def test_a_product_and_a_sum_are_rounded_once():
    x = np.float32(1) + np.arange(64, dtype=np.float32) * np.finfo(np.float32).eps
    out = run("b[i] = fmaf(a[i], a[i], -1.0f);", x, empty("f4"))
    np.testing.assert_array_equal(out, (x.astype(np.float64) ** 2 - 1).astype(np.float32))


COMPARISONS = {
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: (x < y) | (x > y),
    "neu": lambda x, y: x != y,
    "leu": lambda x, y: ~(x > y),
    "nan": lambda x, y: np.isnan(x) | np.isnan(y),
    "num": lambda x, y: ~np.isnan(x) & ~np.isnan(y),
}


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_comparisons_of_floats(comparison):
    x, y = pairs()
    body = f"""
        asm volatile("{{ .reg .pred p;\\n setp.{comparison}.f32 p, %1, %2;\\n selp.u32 %0, 7, 9, p;\\n }}"
                     : "=r"(c[i]) : "f"(a[i]), "f"(b[i]));"""
    out = run(body, x, y, empty(size=256), grid=4)
    np.testing.assert_array_equal(out, np.where(COMPARISONS[comparison](x, y), 7, 9))


@pytest.mark.parametrize(("opcode", "function"), [("ex2", np.exp2), ("lg2", np.log2)])
def test_functions_that_are_approximate(opcode, function):
    x = np.linspace(0.01, 40, 64, dtype=np.float32)
    out = run(f'asm volatile("{opcode}.approx.ftz.f32 %0, %1;" : "=f"(b[i]) : "f"(a[i]));', x, empty("f4"))
    np.testing.assert_allclose(out, function(x), rtol=1e-6)


def test_tanh():  # of libdevice
    x = np.linspace(-12, 12, 64, dtype=np.float32)
    np.testing.assert_allclose(run("b[i] = tanhf(a[i]);", x, empty("f4")), np.tanh(x), rtol=2e-6)


# ---- conversions


def test_floats_to_integers():
    x = np.tile(SPECIAL, 4)
    body = """
        asm volatile("cvt.rni.s32.f32 %0, %1;" : "=r"(b[i]) : "f"(a[i]));
        asm volatile("cvt.rzi.s32.f32 %0, %1;" : "=r"(b[i + 64]) : "f"(a[i]));"""
    out = run(body, x, empty("i4", 128))
    limited = np.clip(np.where(np.isnan(x), 0, x).astype(np.float64), -(2**31), 2**31 - 1)
    np.testing.assert_array_equal(out, np.concatenate([np.rint(limited), np.trunc(limited)]))


def test_integers_to_floats():
    x = np.array(LONG_EDGES * 3, np.uint64)[:64].view(np.int64)
    np.testing.assert_array_equal(run("b[i] = (float)a[i];", x, empty("f4")), x.astype(np.float32))


def test_short_integers_keep_their_sign():
    x = np.arange(-32, 32, dtype=np.int8)
    np.testing.assert_array_equal(run("b[i] = a[i] * 3;", x, empty("i4")), x.astype(np.int32) * 3)


def test_pairs_of_halves():
    x = np.concatenate([np.tile(SPECIAL, 2), np.random.default_rng(0).standard_normal(32).astype(np.float32)])
    body = """
        asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(b[i]) : "f"(a[63 - i]), "f"(a[i]));
        asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(b[i + 64]) : "f"(a[63 - i]), "f"(a[i]));"""
    out = run(body, x, empty(size=128)).view(np.uint16).reshape(2, 64, 2)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out[0, :, 0].view(np.float16), x.astype(np.float16))
    np.testing.assert_array_equal(out[0, :, 1], out[0, ::-1, 0])
    bits = x.view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    np.testing.assert_array_equal(out[1, :, 0], np.where(np.isnan(x), 0x7FFF, nearest))


def test_halves_of_pairs_are_subtracted():
    x, y = (np.random.default_rng(i).standard_normal(128).astype(np.float16) for i in range(2))
    body = 'asm volatile("sub.rn.f16x2 %0, %1, %2;" : "=r"(c[i]) : "r"(a[i]), "r"(b[i]));'
    out = run(body, x.view(np.uint32), y.view(np.uint32), empty())
    np.testing.assert_array_equal(out.view(np.float16), x - y)
