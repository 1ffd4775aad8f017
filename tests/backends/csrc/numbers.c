#include <math.h>
#include <string.h>

#include "testing.h"

int32_t size_of(int32_t dtype) { return dtype == PC_F32 ? 4 : dtype <= PC_BF16 ? 2 : 1; }

static double of_code(uint32_t code, int exponent_bits, int mantissa_bits, int bias, int has_infinity) {
    const uint32_t mantissa = code & ((1u << mantissa_bits) - 1), most = (1u << exponent_bits) - 1;
    const uint32_t exponent = code >> mantissa_bits & most;
    const double sign = code >> (exponent_bits + mantissa_bits) ? -1 : 1;
    if (exponent == most && has_infinity) return mantissa ? NAN : sign * INFINITY;
    if (exponent == most && mantissa == (1u << mantissa_bits) - 1) return NAN;
    if (!exponent) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + (1u << mantissa_bits), (int)exponent - bias - mantissa_bits);
}

static double f16[65536], bf16[65536], e4m3[256]; /* filled when first asked for */

static void fill(void) {
    for (uint32_t code = 0; code < 65536; code++) {
        f16[code] = of_code(code, 5, 10, 15, 1);
        bf16[code] = of_code(code, 8, 7, 127, 1);
        if (code < 256) e4m3[code] = of_code(code, 4, 3, 7, 0);
    }
}

double decode(int32_t dtype, const void *p) {
    float number;
    uint16_t half;
    if (e4m3[1] == 0) fill();
    switch (dtype) {
    case PC_F32: memcpy(&number, p, 4); return number;
    case PC_F16: memcpy(&half, p, 2); return f16[half];
    case PC_BF16: memcpy(&half, p, 2); return bf16[half];
    case PC_I8: return *(const int8_t *)p;
    default: return e4m3[*(const uint8_t *)p];
    }
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static int complain(const char *what, double given, double got, int wrong) {
    if (!wrong) printf("FAIL numbers: %s: %.9g became %.9g\n", what, given, got);
    return 1;
}

/* Every 16-bit number to float32, in vectors and one by one. */
static int check_widening(const pc_kernels *kernels, int32_t dtype) {
    uint16_t codes[64];
    float all[64], one;
    int wrong = 0;
    for (uint32_t code = 0; code < 65536; code += 64) {
        for (int i = 0; i < 64; i++) codes[i] = (uint16_t)(code + i);
        kernels->convert(dtype, codes, PC_F32, all, 64);
        for (int i = 0; i < 64; i++) {
            const double expected = decode(dtype, codes + i);
            kernels->convert(dtype, codes + i, PC_F32, &one, 1);
            const int same = isnan(expected)
                                 ? isnan(all[i]) && isnan(one)
                                 : bits_of(all[i]) == bits_of((float)expected) && bits_of(one) == bits_of(all[i]);
            if (!same) wrong += complain(dtype == PC_F16 ? "float16" : "bfloat16", expected, all[i], wrong);
        }
    }
    return wrong;
}

/* Whether a code is the nearest to x, the even one of two. Beyond the largest number stands infinity, as if it
 * were the next one. */
static int is_nearest(int32_t dtype, double x, uint16_t code) {
    const uint16_t inf = dtype == PC_F16 ? 0x7c00 : 0x7f80, magnitude = code & 0x7fff;
    const double beyond = dtype == PC_F16 ? 0x1p16 : 0x1p128, size = fabs(x);
    if (isnan(x)) return magnitude > inf;
    if (magnitude > inf || (signbit(x) != 0) != code >> 15) return 0;
    if (isinf(x)) return magnitude == inf;
    const uint16_t lower = magnitude ? magnitude - 1 : 0, upper = magnitude < inf ? magnitude + 1 : inf;
    const double here = magnitude == inf ? beyond : decode(dtype, &magnitude), off = fabs(here - size);
    const double below = fabs(decode(dtype, &lower) - size);
    const double above = fabs((upper == inf ? beyond : decode(dtype, &upper)) - size);
    const int even = !(magnitude & 1);
    return (lower == magnitude || off < below || (off == below && even)) &&
           (upper == magnitude || off < above || (off == above && even));
}

static int check_narrowing(const pc_kernels *kernels, int32_t dtype) {
    static const uint32_t corners[] = {0,          1,          0x7fffff,   0x800000,   0x3f800000, 0x477fe000,
                                       0x477fefff, 0x477ff000, 0x47800000, 0x387fc000, 0x387fffff, 0x38800000,
                                       0x33000000, 0x33000001, 0x33800000, 0x33c00000, 0x7f7f0000, 0x7f7f7fff,
                                       0x7f7f8000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};
    enum { CORNERS = sizeof corners / sizeof *corners, MORE = 20000 };
    uint32_t state = 12345;
    int wrong = 0;
    for (int n = 0; n < 2 * CORNERS + MORE; n += 32) {
        float from[32];
        uint16_t to[32], one;
        for (int i = 0; i < 32; i++) {
            const int at = n + i;
            state = state * 1664525u + 1013904223u;
            uint32_t bits = at < 2 * CORNERS ? corners[at / 2] | (at % 2 ? 0x80000000 : 0) : state;
            if (at >= 2 * CORNERS && at % 3 == 0) bits = bits & 0xffff0000;                /* ties */
            if (at >= 2 * CORNERS && at % 3 == 1) bits = (bits & 0x8fffffff) | 0x30000000; /* the range of float16 */
            if (at >= 2 * CORNERS && at % 6 == 4) bits &= 0xfffff000;
            from[i] = float_of(bits);
        }
        kernels->convert(PC_F32, from, dtype, to, 32);
        for (int i = 0; i < 32; i++) {
            kernels->convert(PC_F32, from + i, dtype, &one, 1);
            if (!is_nearest(dtype, from[i], to[i]) || (one != to[i] && !isnan(from[i])))
                wrong +=
                    complain(dtype == PC_F16 ? "to float16" : "to bfloat16", from[i], decode(dtype, to + i), wrong);
        }
    }
    return wrong;
}

/* Scales and codes of rows of every length up to 70. */
static int check_quantising(const pc_kernels *kernels, int32_t dtype) {
    const float limit = dtype == PC_I8 ? 127 : 448;
    uint32_t state = 99;
    int wrong = 0;
    for (int n = 1; n <= 70; n++) {
        float x[70], scale, largest = 0;
        uint8_t codes[70];
        for (int i = 0; i < n; i++) {
            state = state * 1664525u + 1013904223u;
            x[i] = n == 3 ? 0 : ldexpf((int32_t)state, n % 5 * -9 - 31); /* all zero once; sizes that differ */
            if (state % 4 == 0) x[i] *= 0x1p-8f;
            if (fabsf(x[i]) > largest) largest = fabsf(x[i]);
        }
        kernels->quantise(dtype, x, n, codes, &scale);
        if (scale != (largest == 0 ? 1.0f : largest / limit)) wrong += complain("scale", largest, scale, wrong);
        for (int i = 0; i < n; i++) {
            const double wanted = x[i] / scale, got = decode(dtype, codes + i), off = fabs(got - wanted);
            int best = 1;
            for (int code = 0; code < 256; code++) {
                const uint8_t other = (uint8_t)code;
                const double far = fabs(decode(dtype, &other) - wanted);
                if (far < off || (far == off && !(other & 1) && (codes[i] & 1))) best = 0;
            }
            if (!best || !(fabs(got) <= limit)) wrong += complain("quantised", wanted, got, wrong);
        }
    }
    return wrong;
}

static int check_finite(const pc_kernels *kernels) {
    static const float wrongs[] = {INFINITY, -INFINITY, NAN};
    int wrong = 0;
    for (int32_t dtype = PC_F32; dtype <= PC_BF16; dtype++)
        for (int at = 0; at < 37; at++)
            for (int which = 0; which < 4; which++) {
                float x[37];
                char stored[37 * 4];
                for (int i = 0; i < 37; i++) x[i] = 65504.0f / (float)(i + 1);
                if (which < 3) x[at] = wrongs[which];
                kernels->convert(PC_F32, x, dtype, stored, 37);
                if (kernels->finite(dtype, stored, 37) != (which == 3))
                    wrong += complain("finite", x[at], which == 3, wrong);
            }
    return wrong;
}

int check_numbers(const pc_kernels *kernels) {
    int wrong = check_finite(kernels);
    for (int32_t dtype = PC_F16; dtype <= PC_BF16; dtype++)
        wrong += check_widening(kernels, dtype) + check_narrowing(kernels, dtype);
    return wrong + check_quantising(kernels, PC_I8) + check_quantising(kernels, PC_E4M3);
}
