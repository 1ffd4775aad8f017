/* Stored numbers to float32 and back, for one target. No include guard on purpose.
 *
 * Functions take the dtype as an argument that is a constant at every call of the hot loops, so
 * that the compiler leaves one case. */
#undef PC_SIZE
#define PC_SIZE(dtype) ((dtype) == PC_F32 ? 4 : (dtype) <= PC_BF16 ? 2 : 1)

#undef f16_load
#undef bf16_load
#undef i8_load
#undef e4m3_load
#undef n_load
#undef n_one
#define f16_load PC_NAME(f16_load)
#define bf16_load PC_NAME(bf16_load)
#define i8_load PC_NAME(i8_load)
#define e4m3_load PC_NAME(e4m3_load)
#define n_load PC_NAME(n_load)
#define n_one PC_NAME(n_one)

typedef uint16_t PC_NAME(loose_u16) __attribute__((vector_size(W * 2), aligned(1), may_alias));
typedef int8_t PC_NAME(loose_i8) __attribute__((vector_size(W), aligned(1), may_alias));
typedef uint8_t PC_NAME(loose_u8) __attribute__((vector_size(W), aligned(1), may_alias));

PC_INLINE vf f16_load(const void *p) {
#if PC_X86 && W == 16
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif PC_X86 && W == 8
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__aarch64__)
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p)));
#else /* exponent and mantissa into place, then the difference of the biases; infinities and NaN keep theirs */
    vu bits = __builtin_convertvector(*(const PC_NAME(loose_u16) *)p, vu), rest = bits & 0x7fff;
    vf size = (vf)(rest << 13) * 0x1p112f;
    vu special = (vu)(rest >= 0x7c00) & 0x7f800000;
    return (vf)((vu)size | special | (bits & 0x8000) << 16);
#endif
}

PC_INLINE vf bf16_load(const void *p) {
#if PC_X86 && W == 16
    vu bits = (vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
#elif PC_X86 && W == 8 /* the compiler would take the vector apart */
    vu bits = (vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
#else
    vu bits = __builtin_convertvector(*(const PC_NAME(loose_u16) *)p, vu);
#endif
    return (vf)(bits << 16);
}

PC_INLINE vf i8_load(const void *p) {
#if PC_X86 && W == 16
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif PC_X86 && W == 8
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    return __builtin_convertvector(__builtin_convertvector(*(const PC_NAME(loose_i8) *)p, vi), vf);
#endif
}

PC_INLINE vf e4m3_load(const void *p) { /* 7 bits into place, then the difference of the biases, 127 - 7 */
#if PC_X86 && W == 16
    vu bits = (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
#elif PC_X86 && W == 8
    vu bits = (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    vu bits = __builtin_convertvector(*(const PC_NAME(loose_u8) *)p, vu);
#endif
    vu rest = bits & 0x7f;
    vf size = (vf)(rest << 20) * 0x1p120f;
    vu nan = (vu)(rest == 0x7f) & 0x7fc00000;
    return (vf)((vu)size | nan | (bits & 0x80) << 24);
}

PC_INLINE vf n_load(int dtype, const void *p) {
    return dtype == PC_F32    ? v_load((const float *)p)
           : dtype == PC_F16  ? f16_load(p)
           : dtype == PC_BF16 ? bf16_load(p)
           : dtype == PC_I8   ? i8_load(p)
                              : e4m3_load(p);
}

PC_INLINE float n_one(int dtype, const void *p) { /* one number, where a whole vector would read too far */
    char some[W * 4] = {0};
    memcpy(some, p, PC_SIZE(dtype));
    return n_load(dtype, some)[0];
}

/* Rounds to nearest, ties to even; what is too large becomes infinite, and NaN stays NaN. */
static uint16_t PC_NAME(to_bf16)(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t PC_NAME(to_f16)(float x) {
    uint32_t bits, sign, size, kept, lost;
    memcpy(&bits, &x, 4);
    sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more round to infinity */
    if (size < 0x38800000) {                                  /* below 2^-14: steps of 2^-24 */
        float steps;
        memcpy(&steps, &size, 4);
        steps = steps * 0x1p24f + 12582912.0f;
        memcpy(&kept, &steps, 4);
        return (uint16_t)(sign | (kept & 0x7ff));
    }
    lost = size & 0x1fff, kept = (size - 0x38000000) >> 13;
    return (uint16_t)(sign | (kept + (lost > 0x1000 || (lost == 0x1000 && (kept & 1)))));
}

static void PC_NAME(widen)(int32_t from, const char *src, float *dst, int64_t n) {
    int64_t i = 0, size = PC_SIZE(from);
    if (from == PC_F32) memcpy(dst, src, n * 4);
    else {
        for (; i + W <= n; i += W) v_store(dst + i, n_load(from, src + i * size));
        for (; i < n; i++) dst[i] = n_one(from, src + i * size);
    }
}

static void PC_NAME(narrow)(const float *src, int32_t to, char *dst, int64_t n) {
    int64_t i = 0;
    if (to == PC_F32) memcpy(dst, src, n * 4);
    else if (to == PC_F16) {
#if PC_X86 && W == 16
        for (; i + W <= n; i += W)
            _mm256_storeu_si256((__m256i *)(dst + 2 * i), _mm512_cvtps_ph((__m512)v_load(src + i), 0));
#elif PC_X86 && W == 8
        for (; i + W <= n; i += W)
            _mm_storeu_si128((__m128i *)(dst + 2 * i), _mm256_cvtps_ph((__m256)v_load(src + i), 0));
#endif
        for (; i < n; i++) {
            const uint16_t code = PC_NAME(to_f16)(src[i]);
            memcpy(dst + 2 * i, &code, 2);
        }
    } else {
        for (; i + W <= n; i += W) { /* as to_bf16 does it */
            vu bits = (vu)v_load(src + i), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            vu is_nan = (vu)((bits & 0x7fffffff) > 0x7f800000);
            rounded = (is_nan & (bits >> 16 | 0x40)) | (~is_nan & rounded);
            *(PC_NAME(loose_u16) *)(dst + 2 * i) = __builtin_convertvector(rounded, PC_NAME(loose_u16));
        }
        for (; i < n; i++) { /* dst may be room of floats, which pairs of these are read from as such */
            const uint16_t code = PC_NAME(to_bf16)(src[i]);
            memcpy(dst + 2 * i, &code, 2);
        }
    }
}

static void PC_NAME(convert)(int32_t from, const void *src, int32_t to, void *dst, int64_t n) {
    float some[256];
    if (from == to) memcpy(dst, src, n * PC_SIZE(from));
    else if (to == PC_F32) PC_NAME(widen)(from, (const char *)src, (float *)dst, n);
    else if (from == PC_F32) PC_NAME(narrow)((const float *)src, to, (char *)dst, n);
    else
        for (int64_t i = 0; i < n; i += 256) {
            int64_t count = n - i < 256 ? n - i : 256;
            PC_NAME(widen)(from, (const char *)src + i * 2, some, count);
            PC_NAME(narrow)(some, to, (char *)dst + i * 2, count);
        }
}

/* Stores x / scale with scale = absmax / 127 (448 for e4m3), or 1 where all is 0; ties to even. All in
 * float32, as every other backend does it, so that all store the same bits. The numbers are finite. */
static void PC_NAME(quantise)(int32_t to, const float *src, int32_t n, void *dst, float *scale) {
    const float limit = to == PC_I8 ? 127.0f : 448.0f;
    float largest = 0;
    vf most = v_zero();
    int32_t i = 0;
    for (; i + W <= n; i += W) most = v_max(most, (vf)((vi)v_load(src + i) & 0x7fffffff));
    largest = v_largest(most);
    for (; i < n; i++) largest = fabsf(src[i]) > largest ? fabsf(src[i]) : largest;
    float step = largest / limit;
    *scale = step = step == 0 ? 1.0f : step;
    for (i = 0; i < n; i++) {
        float x = src[i] / step;
        x = x > limit ? limit : x < -limit ? -limit : x;
        if (to == PC_I8) {
            float rounded = x + 12582912.0f;
            int32_t bits;
            memcpy(&bits, &rounded, 4);
            ((int8_t *)dst)[i] = (int8_t)(bits - 0x4b400000);
        } else {
            uint32_t bits, size, code;
            memcpy(&bits, &x, 4);
            size = bits & 0x7fffffff;
            if (size < 0x3c800000) { /* below 2^-6: steps of 2^-9 */
                float steps;
                memcpy(&steps, &size, 4);
                steps = steps * 0x1p9f + 12582912.0f;
                memcpy(&code, &steps, 4);
                code -= 0x4b400000;
            } else code = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
            ((uint8_t *)dst)[i] = (uint8_t)(code | (bits >> 24 & 0x80));
        }
    }
}

static int32_t PC_NAME(finite)(int32_t dtype, const void *src, int64_t n) {
    uint32_t wrong = 0;
    if (dtype == PC_F32)
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, (const char *)src + 4 * i, 4);
            wrong |= (bits & 0x7f800000) == 0x7f800000;
        }
    else {
        const uint16_t mask = dtype == PC_F16 ? 0x7c00 : 0x7f80;
        for (int64_t i = 0; i < n; i++) {
            uint16_t bits;
            memcpy(&bits, (const char *)src + 2 * i, 2);
            wrong |= (bits & mask) == mask;
        }
    }
    return !wrong;
}
