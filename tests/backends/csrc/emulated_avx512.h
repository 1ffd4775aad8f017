/* The AVX-512 instructions that the kernels name, written out in C, so that the kernels for 64-byte vectors
 * run on processors that have none of it.
 *
 * Each does what its page in Intel's manual says, element by element, with the default MXCSR. Two things
 * are approximated: which NaN comes out (any quiet one), and products in _mm512_dpbf16_ps that are too large
 * or too small for a float32, where rounding of the product would show. (All others fit: 8 + 8 bits.) */
#pragma once
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EMULATED static inline __attribute__((always_inline))
#define EMULATED_CALL                                                                                                  \
    static __attribute__((noinline, target("avx2,fma,f16c"))) /* long ones: the kernels unroll a lot */

typedef float emulated_f32 __attribute__((vector_size(64)));
typedef int32_t emulated_i32 __attribute__((vector_size(64)));
typedef uint32_t emulated_u32 __attribute__((vector_size(64)));
typedef int16_t emulated_i16 __attribute__((vector_size(64)));
typedef uint16_t emulated_half __attribute__((vector_size(32)));
typedef int8_t emulated_i8 __attribute__((vector_size(16)));
typedef uint8_t emulated_u8 __attribute__((vector_size(16)));

/* -- moves ---------------------------------------------------------------------------------------- */

EMULATED __m512i emulated_load(const void *p) {
    __m512i x;
    memcpy(&x, p, sizeof x);
    return x;
}

EMULATED void emulated_store(void *p, __m512i x) { memcpy(p, &x, sizeof x); }

/* What the mask leaves out becomes 0 and is not touched in memory. */
EMULATED_CALL __m512i emulated_load_masked(__mmask32 mask, const void *p) {
    int16_t x[32] = {0};
    if (mask == 0xffffffffu) memcpy(x, p, sizeof x);
    else
        for (int i = 0; i < 32; i++)
            if (mask >> i & 1) memcpy(x + i, (const char *)p + 2 * i, 2);
    return emulated_load(x);
}

EMULATED __m512i emulated_set1_i32(int32_t x) { return (__m512i)(x - (emulated_i32){0}); }

EMULATED_CALL __m512i emulated_set1_i16(int16_t x) {
    emulated_i16 all;
    for (int i = 0; i < 32; i++) all[i] = x;
    return (__m512i)all;
}

EMULATED __m512i emulated_add_i16(__m512i a, __m512i b) { return (__m512i)((emulated_i16)a + (emulated_i16)b); }

/* Bits 0 to 4 of an index choose the element, bit 5 chooses b. */
EMULATED_CALL __m512i emulated_permute_two(__m512i a, __m512i index, __m512i b) {
    int16_t from[64], at[32], x[32];
    memcpy(from, &a, sizeof a);
    memcpy(from + 32, &b, sizeof b);
    memcpy(at, &index, sizeof at);
    for (int i = 0; i < 32; i++) x[i] = from[at[i] & 63];
    return emulated_load(x);
}

EMULATED_CALL uint16_t emulated_signs(__m512i x) {
    const emulated_i32 lanes = (emulated_i32)x;
    uint16_t mask = 0;
    for (int i = 0; i < 16; i++) mask |= (uint16_t)((lanes[i] < 0) << i);
    return mask;
}

/* -- conversions ---------------------------------------------------------------------------------- */

EMULATED __m512i emulated_from_i8(__m128i x) { return (__m512i) __builtin_convertvector((emulated_i8)x, emulated_i32); }
EMULATED __m512i emulated_from_u8(__m128i x) { return (__m512i) __builtin_convertvector((emulated_u8)x, emulated_u32); }
EMULATED __m512i emulated_from_u16(__m256i x) {
    return (__m512i) __builtin_convertvector((emulated_half)x, emulated_u32);
}
EMULATED __m512 emulated_i32_to_f32(__m512i x) {
    return (__m512) __builtin_convertvector((emulated_i32)x, emulated_f32);
}

/* Denormal numbers are honoured, signalling NaN become quiet. */
EMULATED_CALL __m512 emulated_from_f16(__m256i x) {
    const emulated_u32 bits = __builtin_convertvector((emulated_half)x, emulated_u32), rest = bits & 0x7fff;
    const emulated_u32 size = (emulated_u32)((emulated_f32)(rest << 13) * 0x1p112f);
    const emulated_u32 top = (emulated_u32)(rest >= 0x7c00) & 0x7f800000;
    const emulated_u32 quiet = (emulated_u32)(rest > 0x7c00) & 0x400000;
    return (__m512)(size | top | quiet | (bits & 0x8000) << 16);
}

/* Rounds to nearest, ties to even: by adding, in float64, what pushes the lost bits out. */
EMULATED uint16_t emulated_one_f16(float x) {
    uint32_t bits, size, exponent;
    memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 16 & 0x8000;
    size = bits & 0x7fffffff, exponent = size >> 23;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x1ff));
    if (exponent >= 127 + 16) return (uint16_t)(sign | 0x7c00);
    const int ulp = (exponent < 127 - 14 ? -14 : (int)exponent - 127) - 10; /* log2 of the steps there */
    const double magnitude = fabs((double)x) * ldexp(1, -ulp);
    const uint32_t steps = (uint32_t)((magnitude + 0x1p52) - 0x1p52);
    return (uint16_t)(sign | (steps + ((uint32_t)(ulp + 24) << 10)));
}

EMULATED_CALL __m256i emulated_to_f16(__m512 x, int rounding) {
    const emulated_f32 from = (emulated_f32)x;
    uint16_t to[16];
    __m256i packed;
    if (rounding != _MM_FROUND_TO_NEAREST_INT) __builtin_trap();
    for (int i = 0; i < 16; i++) to[i] = emulated_one_f16(from[i]);
    memcpy(&packed, to, sizeof packed);
    return packed;
}

/* To brain floats: nearest, ties to even; denormal numbers become 0. */
EMULATED_CALL __m256i emulated_to_bf16(__m512 x) {
    const emulated_u32 bits = (emulated_u32)x, size = bits & 0x7fffffff;
    const emulated_u32 tiny = (emulated_u32)(size < 0x800000), nan = (emulated_u32)(size > 0x7f800000);
    const emulated_u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const emulated_u32 kept = (nan & (bits >> 16 | 0x40)) | (~nan & rounded);
    return (__m256i) __builtin_convertvector((tiny & (bits >> 16 & 0x8000)) | (~tiny & kept), emulated_half);
}

/* -- arithmetic ----------------------------------------------------------------------------------- */

EMULATED_CALL __m512 emulated_round(__m512 x, int how) {
    emulated_f32 r = (emulated_f32)x;
    if (how != (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)) __builtin_trap();
    for (int i = 0; i < 16; i++) r[i] = __builtin_rintf(r[i]);
    return (__m512)r;
}

EMULATED float emulated_scale_one(float a, float b) { /* a * 2^floor(b), rounded once */
    if (isnan(a) || isnan(b)) return isinf(b) ? (b > 0 ? INFINITY : 0) : NAN;
    if (isinf(b)) return b > 0 ? a * INFINITY : isinf(a) ? NAN : copysignf(0, a);
    const double n = floor(b < -400 ? -400 : b > 400 ? 400 : b); /* more leaves the range of float32 anyhow */
    const uint64_t power = (uint64_t)(1023 + (int64_t)n) << 52;
    double factor;
    memcpy(&factor, &power, 8);
    return (float)(a * factor);
}

EMULATED_CALL __m512 emulated_scale(__m512 a, __m512 b) {
    const emulated_f32 x = (emulated_f32)a, n = (emulated_f32)b;
    emulated_f32 r;
    for (int i = 0; i < 16; i++) r[i] = emulated_scale_one(x[i], n[i]);
    return (__m512)r;
}

EMULATED emulated_f32 emulated_flush(emulated_u32 x) { /* denormal numbers to 0 */
    const emulated_u32 tiny = (emulated_u32)((x & 0x7f800000) == 0);
    return (emulated_f32)(x & (~tiny | 0x80000000));
}

/* Of each pair the odd product is added first, then the even one; denormal numbers count as 0 throughout. */
EMULATED_CALL __m512 emulated_dot_bf16(__m512 sum, __m512i a, __m512i b) {
    const emulated_u32 x = (emulated_u32)a, y = (emulated_u32)b;
    emulated_f32 r = emulated_flush((emulated_u32)sum);
    r = emulated_flush((emulated_u32)(r + emulated_flush(x & 0xffff0000) * emulated_flush(y & 0xffff0000)));
    r = emulated_flush((emulated_u32)(r + emulated_flush(x << 16) * emulated_flush(y << 16)));
    return (__m512)r;
}

/* -- their names ---------------------------------------------------------------------------------- */

#undef _mm512_cvtps_ph /* some are macros where the compiler does not optimise */
#undef _mm512_roundscale_ps
#define _mm512_loadu_si512 emulated_load
#define _mm512_storeu_si512 emulated_store
#define _mm512_maskz_loadu_epi16 emulated_load_masked
#define _mm512_set1_epi32 emulated_set1_i32
#define _mm512_set1_epi16 emulated_set1_i16
#define _mm512_set_epi16(...) ((__m512i)emulated_reversed((emulated_i16){__VA_ARGS__}))
#define _mm512_add_epi16 emulated_add_i16
#define _mm512_permutex2var_epi16 emulated_permute_two
#define _mm512_movepi32_mask emulated_signs
#define _mm512_cvtepi8_epi32 emulated_from_i8
#define _mm512_cvtepu8_epi32 emulated_from_u8
#define _mm512_cvtepu16_epi32 emulated_from_u16
#define _mm512_cvtepi32_ps emulated_i32_to_f32
#define _mm512_cvtph_ps emulated_from_f16
#define _mm512_cvtps_ph emulated_to_f16
#define _mm512_cvtneps_pbh emulated_to_bf16
#define _mm512_roundscale_ps emulated_round
#define _mm512_scalef_ps emulated_scale
#define _mm512_dpbf16_ps(sum, x, y) emulated_dot_bf16((sum), (__m512i)(x), (__m512i)(y))

EMULATED emulated_i16 emulated_reversed(emulated_i16 x) { /* arguments stand highest element first */
    emulated_i16 r;
    for (int i = 0; i < 32; i++) r[i] = x[31 - i];
    return r;
}
