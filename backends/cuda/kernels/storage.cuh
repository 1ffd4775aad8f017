// What a pool stores, and how its numbers lie in a tensor core's operands.
//
// 8-bit codes are multiplied as f16, exactly: int8 fits, an e5m2 is half of one, an e4m3 read as f16 its value / 256.
// A chunk of 16 bytes holds 16 of them, where a tensor core takes rows of 16-bit pairs. So what a lane gets of a chunk
// are columns 4j to 4j + 3, instead of 2j, 2j + 1, 2j + 8 and 2j + 9. Sums do not mind the order of columns, if q has
// the same one: `query_place` and `column` say it.
#pragma once

// OPERAND is the type of products, FACTOR times one of them a code's value; SAME the Given of the same type, -1 for
// none.
template <class OPERAND, bool IS_CODE, bool HAS_SCALES, int FACTOR_OF, int SAME> struct StoredAs {
    typedef OPERAND Operand;
    static constexpr bool CODES = IS_CODE, SCALED = HAS_SCALES, TENSOR = sizeof(OPERAND) < 4;
    static constexpr float FACTOR = FACTOR_OF;
    static constexpr int GIVEN = SAME;
};

template <class T> struct Storage;
template <> struct Storage<float> : StoredAs<float, false, false, 1, GIVEN_F32> {};
template <> struct Storage<f16> : StoredAs<f16, false, false, 1, GIVEN_F16> {};
template <> struct Storage<bf16> : StoredAs<bf16, false, false, 1, GIVEN_BF16> {};
template <> struct Storage<i8> : StoredAs<f16, true, true, 1, -1> {};
template <> struct Storage<e4m3> : StoredAs<f16, true, true, 256, -1> {};
template <> struct Storage<e5m2> : StoredAs<f16, true, false, 1, -1> {};

// Bytes between rows of D elements in shared memory: an odd number of 16-byte chunks, so that 8 rows read at the same
// column lie in different banks.
template <class T, int D> constexpr int row_bytes() { return (D * (int)sizeof(T) / 16 | 1) * 16; }

// The column of a head that element e (0 or 1) of lane j (0 to 3 of its quad) in a tile of 8 columns holds.
template <class T> PC_DEVICE int column(int tile, int j, int e) {
    return Storage<T>::CODES ? tile / 2 * 16 + 4 * j + 2 * e + tile % 2 : tile * 8 + 2 * j + e;
}

// Where column `c` of q stands in shared memory.
template <class T> PC_DEVICE int query_place(int c) {
    if (!Storage<T>::CODES) return c;
    const int j = c % 16 / 4, x = c % 4;
    return c / 16 * 16 + 2 * j + x % 2 + x / 2 * 8;
}

// Two f16 whose upper bytes are bytes a and b of `codes`, the lower ones 0.
template <int A, int B> PC_DEVICE u32 spread(u32 codes) { return pc_permute(codes, 0, 0x4 | A << 4 | 0x400 | B << 12); }

// Bytes A and B of `codes` as a pair of operands.
template <int A, int B> PC_DEVICE u32 operands(u32 codes, i8) {
    // f16 of 1024 + 128 + code
    const u32 biased = pc_permute(codes ^ 0x80808080, 0x64646464, A | 0x40 | B << 8 | 0x4000);
    return pc_subtract_pairs(biased, 0x64806480);
}

template <int A, int B> PC_DEVICE u32 operands(u32 codes, e4m3) {
    const u32 high = spread<A, B>(codes);
    return (high & 0x80008000) | (high & 0x7f007f00) >> 1;
}

template <int A, int B> PC_DEVICE u32 operands(u32 codes, e5m2) { return spread<A, B>(codes); }

PC_DEVICE float number(float x) { return x; }
PC_DEVICE float number(f16 x) { return pc_float(x); }
PC_DEVICE float number(bf16 x) { return pc_from_bits((u32)x.bits << 16); }
PC_DEVICE float number(i8 x) { return (float)x; }
PC_DEVICE float number(e4m3 x) {
    const u16 bits = (u16)((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7);
    return pc_float(f16{bits}) * 256;
}

PC_DEVICE float number(e5m2 x) { return pc_float(f16{(u16)(x.bits << 8)}); }

// ---- arrays of the caller, of a type that is known only when the kernel runs

PC_DEVICE float given_number(const void *array, int given, i64 i) {
    if (given == GIVEN_F32) return ((const float *)array)[i];
    return given == GIVEN_F16 ? number(((const f16 *)array)[i]) : number(((const bf16 *)array)[i]);
}

// Rounded to nearest even; NaN stays a NaN, not the same one.
PC_DEVICE bf16 rounded_bf16(float x) { return bf16{(u16)pc_pack(x, 0, bf16{})}; }
PC_DEVICE f16 rounded_f16(float x) { return f16{(u16)pc_pack(x, 0, f16{})}; }

PC_DEVICE void put_number(void *array, int given, i64 i, float x) {
    if (given == GIVEN_F32) {
        ((float *)array)[i] = x;
    } else if (given == GIVEN_F16) {
        ((f16 *)array)[i] = rounded_f16(x);
    } else {
        ((bf16 *)array)[i] = rounded_bf16(x);
    }
}

// Two of them beside each other, at an even i of an array that is aligned to pairs.
PC_DEVICE void put_pair(void *array, int given, i64 i, float x, float y) {
    if (given == GIVEN_F32) {
        ((float *)array)[i] = x;
        ((float *)array)[i + 1] = y;
    } else {
        *(u32 *)((u16 *)array + i) = given == GIVEN_F16 ? pc_pack(x, y, f16{}) : pc_pack(x, y, bf16{});
    }
}
