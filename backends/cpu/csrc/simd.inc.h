/* Vectors of PC_WIDTH numbers, for one target. No include guard on purpose.
 *
 * Most of it is the compiler's vector extension, which every target understands; intrinsics stand
 * only where it finds no good instruction. Comparisons give lanes of all ones or none. */
#undef vf
#undef vi
#undef vu
#undef W
#define vf PC_NAME(vf)
#define vi PC_NAME(vi)
#define vu PC_NAME(vu)
#define W PC_WIDTH

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef float PC_NAME(loose_vf) __attribute__((vector_size(W * 4), aligned(4), may_alias));

/* Registers for accumulators: half of 32, or of 16. */
#undef PC_ACCUMULATORS
#if PC_TARGET == PC_BASELINE || PC_TARGET == PC_AVX2
#define PC_ACCUMULATORS 8
#else
#define PC_ACCUMULATORS 16
#endif

/* Keeps a loaded vector in its register where the compiler would load it once per use. */
#undef PC_HOLD
#ifdef PC_EMULATED
#define PC_HOLD(x) ((void)(x))
#elif PC_X86 && W == 16
#define PC_HOLD(x) __asm__("" : "+v"(x))
#elif PC_X86
#define PC_HOLD(x) __asm__("" : "+x"(x))
#else
#define PC_HOLD(x) __asm__("" : "+w"(x))
#endif

#undef v_load
#undef v_store
#undef v_set
#undef v_zero
#undef v_max
#undef v_any
#undef v_sum
#undef v_largest
#undef v_exp2
#undef v_tanh
#undef v_sums
#undef v_count
#undef v_ints
#define v_load PC_NAME(v_load)
#define v_store PC_NAME(v_store)
#define v_set PC_NAME(v_set)
#define v_zero PC_NAME(v_zero)
#define v_max PC_NAME(v_max)
#define v_any PC_NAME(v_any)
#define v_sum PC_NAME(v_sum)
#define v_largest PC_NAME(v_largest)
#define v_exp2 PC_NAME(v_exp2)
#define v_tanh PC_NAME(v_tanh)
#define v_sums PC_NAME(v_sums)
#define v_count PC_NAME(v_count)
#define v_ints PC_NAME(v_ints)

PC_INLINE vf v_load(const float *p) { return *(const PC_NAME(loose_vf) *)p; }
PC_INLINE void v_store(float *p, vf v) { *(PC_NAME(loose_vf) *)p = v; }
PC_INLINE vf v_zero(void) { return (vf){0}; }
PC_INLINE vf v_set(float x) { return x - (vf){0}; } /* +0 would turn -0 into 0 */
PC_INLINE vi v_ints(int32_t x) { return x - (vi){0}; }
PC_INLINE vf v_max(vf a, vf b) { return (vf)(((vi)a & (a > b)) | ((vi)b & ~(a > b))); } /* b where one is NaN */

PC_INLINE vi v_count(void) { /* 0, 1, 2, ... */
#if W == 16
    return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif W == 8
    return (vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (vi){0, 1, 2, 3};
#endif
}

PC_INLINE int v_any(vi mask) {
#if PC_X86 && W == 16
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif PC_X86 && W == 8
    return _mm256_movemask_ps((__m256)mask) != 0;
#elif PC_X86
    return _mm_movemask_ps((__m128)mask) != 0;
#else
    return ((mask[0] | mask[1]) | (mask[2] | mask[3])) != 0;
#endif
}

PC_INLINE float v_sum(vf v) { /* always in this order */
    float x[W];
    memcpy(x, &v, sizeof x);
    for (int n = W / 2; n; n /= 2)
        for (int i = 0; i < n; i++) x[i] += x[i + n];
    return x[0];
}

PC_INLINE float v_largest(vf v) {
    float x[W], largest;
    memcpy(x, &v, sizeof x);
    largest = x[0];
    for (int i = 1; i < W; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

/* 2^x for x <= 8 or so: 2^n, times a minimax polynomial of degree 6 on [-1/2, 1/2] (relative error
 * 2e-9 before rounding). Below 2^-126 it stays there; NaN stays NaN. */
PC_INLINE vf v_exp2(vf x) {
    x = v_max(v_set(-126.0f), x);
#if PC_X86 && W == 16
    vf n = (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vf f = x - n;
#else
    vf magic = x + 12582912.0f; /* 1.5 * 2^23: rounds to a whole number, which stands in the low bits */
    PC_HOLD(magic);
    vf f = x - (magic - 12582912.0f);
#endif
    vf p = 1.53458120e-4f * f + 1.33999312e-3f;
    p = p * f + 9.61848896e-3f;
    p = p * f + 5.55032878e-2f;
    p = p * f + 2.40226469e-1f;
    p = p * f + 6.93147206e-1f;
    p = p * f + 1.0f;
#if PC_X86 && W == 16
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    vi is_nan = x != x;
    vf scaled = (vf)((vi)p + ((vi)magic << 23));
    return (vf)(((vi)x & is_nan) | ((vi)scaled & ~is_nan));
#endif
}

/* Odd minimax polynomial of degree 11 below 0.625 (relative error 4e-9), beyond it 1 - 2 / (e^2x + 1). */
PC_INLINE vf v_tanh(vf x) {
    vf size = (vf)((vi)x & 0x7fffffff), square = x * x;
    vf p = -5.65999e-3f * square + 2.059099e-2f;
    p = p * square - 5.372107e-2f;
    p = p * square + 1.3331128e-1f;
    p = p * square - 3.3333261e-1f;
    vf near = x + x * square * p;
    vi large = size > 12.0f;
    vf limited = (vf)(((vi)v_set(12.0f) & large) | ((vi)size & ~large));
    vf far = 1.0f - 2.0f / (v_exp2(limited * 2.885390082f) + 1.0f);
    far = (vf)((vi)far | ((vi)x & (int32_t)0x80000000));
    vi is_near = size < 0.625f;
    return (vf)(((vi)near & is_near) | ((vi)far & ~is_near));
}

/* Sums of W vectors, as one vector: a tree of pairwise interleaved additions. */
PC_INLINE vf v_sums(vf *a) {
#if W == 16
    vf b[8], c[4], d[2];
    PC_EACH (i, 8)
        b[i] =
            __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
            __builtin_shufflevector(a[2 * i], a[2 * i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    PC_EACH (i, 4)
        c[i] =
            __builtin_shufflevector(b[2 * i], b[2 * i + 1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
            __builtin_shufflevector(b[2 * i], b[2 * i + 1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    PC_EACH (i, 2)
        d[i] =
            __builtin_shufflevector(c[2 * i], c[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
            __builtin_shufflevector(c[2 * i], c[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    return __builtin_shufflevector(d[0], d[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(d[0], d[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
#elif W == 8
    vf b[4], c[2];
    PC_EACH (i, 4)
        b[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
               __builtin_shufflevector(a[2 * i], a[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    PC_EACH (i, 2)
        c[i] = __builtin_shufflevector(b[2 * i], b[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(b[2 * i], b[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(c[0], c[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(c[0], c[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
    vf b[2];
    PC_EACH (i, 2)
        b[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 4, 1, 5) +
               __builtin_shufflevector(a[2 * i], a[2 * i + 1], 2, 6, 3, 7);
    return __builtin_shufflevector(b[0], b[1], 0, 1, 4, 5) + __builtin_shufflevector(b[0], b[1], 2, 3, 6, 7);
#endif
}
