/* bfloat16 multiplied as it is: products of pairs, summed in float32 (vdpbf16ps). For AVX-512-BF16 only. */

#undef PC_MASK
#define PC_MASK(left) ((left) >= 32 ? 0xffffffffu : (1u << (left)) - 1)

PC_INLINE vf PC_NAME(dot)(vf sum, __m512i x, __m512i y) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
}

/* Weights of a row as brain floats, in the first half of the same room. */
PC_INLINE void PC_NAME(round_weights)(const float *s, uint16_t *p, int32_t n) {
    for (int32_t j = 0; j < n; j += W)
        _mm256_storeu_si256((__m256i *)(p + j), (__m256i)_mm512_cvtneps_pbh((__m512)v_load(s + j)));
}

/* As `products`. The head size may be any: q is filled up with zeros, and K is read under a mask. */
PC_INLINE void PC_NAME(products_native)(const int rows, const int fetch, const uint16_t *q, int64_t q_width,
                                        const char *k, const int64_t *at, int32_t width, float *s,
                                        const PC_NAME(ahead) *ahead, int32_t first) {
    const int tokens = PC_TOKENS(rows);
    for (int t0 = 0; t0 < 16; t0 += tokens) {
        const char *row[16], *near[16], *far[16];
        vf a[16];
        PC_EACH (i, 16) a[i] = v_zero();
        PC_EACH (t, tokens) {
            row[t] = k + at[t0 + t];
            near[t] = fetch ? ahead->near + ahead->near_at[first + t0 + t] : NULL;
            far[t] = fetch ? ahead->far + ahead->far_at[first + t0 + t] : NULL;
        }
        for (int64_t d = 0; d < width; d += 32) {
            const __mmask32 mask = PC_MASK(width - d);
            __m512i x[16];
            if (fetch)
                PC_EACH (t, tokens) {
                    PC_PREFETCH(near[t] + d * 2);
                    PC_PREFETCH(far[t] + d * 2);
                }
            PC_EACH (t, tokens) {
                x[t] = _mm512_maskz_loadu_epi16(mask, row[t] + d * 2);
                if (rows > 1) PC_HOLD(x[t]);
            }
            PC_EACH (g, rows) {
                __m512i y = _mm512_loadu_si512(q + g * q_width + d);
                PC_HOLD(y);
                PC_EACH (t, tokens) a[g * tokens + t] = PC_NAME(dot)(a[g * tokens + t], x[t], y);
            }
        }
        float sums[16];
        v_store(sums, v_sums(a));
        PC_EACH (g, rows) memcpy(s + g * PC_TILE + t0, sums + g * tokens, tokens * sizeof *s);
    }
}

/* Two tokens at a time: their rows of V are interleaved, so that pairs stand beside each other. */
PC_INLINE void PC_NAME(pairs_native)(const int rows, const int pairs, const int fetch, const uint16_t *p, const char *v,
                                     const int64_t *at, int32_t n, int32_t d, int32_t width, float *acc,
                                     int64_t v_width, const PC_NAME(ahead) *ahead) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __mmask32 mask = PC_MASK(width - d - (pairs - 1) * 32);
    vf a[4][8];
    PC_EACH (g, rows)
        PC_EACH (i, 2 * pairs) a[g][i] = v_load(acc + g * v_width + d + i * W);
    for (int32_t t = 0; t < n; t += 2) {
        const int32_t u = t + 1 < n ? t + 1 : t;
        if (fetch)
            PC_EACH_BY (e, 64 * pairs, 64) {
                PC_PREFETCH(ahead->near + ahead->near_at[t] + (int64_t)d * 2 + e);
                PC_PREFETCH(ahead->far + ahead->far_at[t] + (int64_t)d * 2 + e);
                PC_PREFETCH(ahead->near + ahead->near_at[u] + (int64_t)d * 2 + e);
                PC_PREFETCH(ahead->far + ahead->far_at[u] + (int64_t)d * 2 + e);
            }
        __m512i y[4];
        PC_EACH (g, rows) {
            int32_t pair;
            memcpy(&pair, p + g * 2 * PC_TILE + t, 4);
            y[g] = _mm512_set1_epi32(pair);
        }
        PC_EACH (i, pairs) {
            const __mmask32 kept = i == pairs - 1 ? mask : 0xffffffffu;
            const __m512i one = _mm512_maskz_loadu_epi16(kept, v + at[t] + (int64_t)(d + 32 * i) * 2);
            const __m512i two = _mm512_maskz_loadu_epi16(u > t ? kept : 0, v + at[u] + (int64_t)(d + 32 * i) * 2);
            const __m512i x0 = _mm512_permutex2var_epi16(one, low, two);
            const __m512i x1 = _mm512_permutex2var_epi16(one, high, two);
            PC_EACH (g, rows) {
                a[g][2 * i] = PC_NAME(dot)(a[g][2 * i], x0, y[g]);
                a[g][2 * i + 1] = PC_NAME(dot)(a[g][2 * i + 1], x1, y[g]);
            }
        }
    }
    PC_EACH (g, rows)
        PC_EACH (i, 2 * pairs) v_store(acc + g * v_width + d + i * W, a[g][i]);
}

PC_INLINE void PC_NAME(sums_native)(const int rows, const int fetch, const uint16_t *p, const char *v,
                                    const int64_t *at, int32_t n, int32_t width, float *acc, int64_t v_width,
                                    const PC_NAME(ahead) *ahead) {
    const int most = rows <= 2 ? 4 : 2;
    int32_t d = 0;
    for (; d + most * 32 <= width; d += most * 32)
        PC_NAME(pairs_native)(rows, most, fetch, p, v, at, n, d, width, acc, v_width, ahead);
    if (most > 2 && d + 64 <= width) {
        PC_NAME(pairs_native)(rows, 2, fetch, p, v, at, n, d, width, acc, v_width, ahead);
        d += 64;
    }
    for (; d < width; d += 32) PC_NAME(pairs_native)(rows, 1, fetch, p, v, at, n, d, width, acc, v_width, ahead);
}
