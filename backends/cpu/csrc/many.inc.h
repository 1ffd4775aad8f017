/* Attention of many queries (prefill, chunks): tiles of queries against tiles of keys, as two matrix
 * products with an online softmax between them. No include guard on purpose.
 *
 *   rows [count * group, width]   query heads of one KV head, query after query, kept for the whole item
 *   keys [width, PC_TILE]         K of a tile, gathered from its blocks and transposed
 *   s    [rows, PC_TILE]          rows x keys, then weights
 *   vals [PC_TILE, width]         V of a tile
 *   acc  [rows, width]            += s x vals
 *
 * keys and vals stand in panels of PC_BLOCK_COLUMNS columns, one behind the other: rows of them that lay
 * 256 bytes apart would meet in few sets of the L1 cache.
 *
 * Queries stand in order, so that the first rows see nothing of late tiles, and the last nothing of
 * what a window has left behind: those blocks of rows are left out. Where bfloat16 is multiplied as
 * it is, pairs of numbers take the place of single ones in rows, keys, s and vals. */

/* With two vectors a row, sums and operands fill the registers. */
#undef PC_BLOCK_ROWS
#define PC_BLOCK_ROWS (PC_ACCUMULATORS == 8 ? 6 : 8)
#undef PC_BLOCK_COLUMNS
#define PC_BLOCK_COLUMNS (2 * W)

static int64_t PC_NAME(many_rows)(const pc_job *job, const pc_item *item) { /* in whole blocks */
    const int64_t rows = (int64_t)item->count * job->group;
    return (rows + PC_BLOCK_ROWS - 1) / PC_BLOCK_ROWS * PC_BLOCK_ROWS;
}

static int64_t PC_NAME(many_scratch)(const pc_job *job, const pc_item *item) {
    const int64_t rows = PC_NAME(many_rows)(job, item), k_width = PC_NAME(padded)(job->k.width);
    const int64_t v_width = PC_NAME(padded)(job->v.width);
    return sizeof(float) * (rows * (k_width + v_width + PC_TILE + W + 2) + PC_TILE * (k_width + v_width)) +
           sizeof(PC_NAME(cells)) + 64;
}

/* c[rows, PC_BLOCK_COLUMNS] = a[rows, depth] x b[depth, PC_BLOCK_COLUMNS] (+ c times `factors` of the rows). */
PC_INLINE void PC_NAME(block_product)(const int native, const int adding, const float *a, int64_t a_stride,
                                      const float *b, int32_t depth, float *c, int64_t c_stride, const float *factors) {
    vf sum[PC_BLOCK_ROWS][2];
    PC_EACH (i, PC_BLOCK_ROWS)
        PC_EACH (j, 2) sum[i][j] = adding ? v_load(c + i * c_stride + j * W) * factors[i] : v_zero();
    for (int32_t k = 0; k < depth; k++) {
        const vf b0 = v_load(b + k * PC_BLOCK_COLUMNS), b1 = v_load(b + k * PC_BLOCK_COLUMNS + W);
        PC_EACH (i, PC_BLOCK_ROWS) {
            const vf x = v_set(a[i * a_stride + k]);
#if PC_TARGET == PC_AVX512BF16
            if (native) {
                sum[i][0] = PC_NAME(dot)(sum[i][0], (__m512i)b0, (__m512i)x);
                sum[i][1] = PC_NAME(dot)(sum[i][1], (__m512i)b1, (__m512i)x);
                continue;
            }
#endif
            sum[i][0] += b0 * x;
            sum[i][1] += b1 * x;
        }
    }
    PC_EACH (i, PC_BLOCK_ROWS)
        PC_EACH (j, 2) v_store(c + i * c_stride + j * W, sum[i][j]);
}

static __attribute__((noinline)) void PC_NAME(multiply)(int native, const float *a, int64_t a_stride, const float *b,
                                                        int64_t b_rows, int64_t first, int64_t end, int32_t columns,
                                                        int32_t depth, float *c, int64_t c_stride) {
    for (int32_t j = 0; j < columns; j += PC_BLOCK_COLUMNS)
        for (int64_t i = first; i < end; i += PC_BLOCK_ROWS) {
            const float *rows = a + i * a_stride;
            float *to = c + i * c_stride + j;
            if (native) PC_NAME(block_product)(1, 0, rows, a_stride, b + j * b_rows, depth, to, c_stride, NULL);
            else PC_NAME(block_product)(0, 0, rows, a_stride, b + j * b_rows, depth, to, c_stride, NULL);
        }
}

static __attribute__((noinline)) void PC_NAME(multiply_add)(int native, const float *a, int64_t a_stride,
                                                            const float *b, int64_t b_rows, int64_t first, int64_t end,
                                                            int32_t columns, int32_t depth, float *c, int64_t c_stride,
                                                            const float *factors) {
    for (int32_t j = 0; j < columns; j += PC_BLOCK_COLUMNS)
        for (int64_t i = first; i < end; i += PC_BLOCK_ROWS) {
            const float *rows = a + i * a_stride;
            float *to = c + i * c_stride + j;
            if (native) PC_NAME(block_product)(1, 1, rows, a_stride, b + j * b_rows, depth, to, c_stride, factors + i);
            else PC_NAME(block_product)(0, 1, rows, a_stride, b + j * b_rows, depth, to, c_stride, factors + i);
        }
}

/* Where row `row` of a matrix of `rows` rows has its column `column`, a multiple of W. */
PC_INLINE float *PC_NAME(in_panels)(float *matrix, int64_t rows, int64_t row, int64_t column) {
    return matrix + column / PC_BLOCK_COLUMNS * PC_BLOCK_COLUMNS * rows + row * PC_BLOCK_COLUMNS +
           column % PC_BLOCK_COLUMNS;
}

/* Rows become columns: log2(W) times, each vector of the lower half is interleaved with its partner above. */
PC_INLINE void PC_NAME(transpose)(vf *x) {
    PC_UNROLL for (int n = 1; n < W; n *= 2) {
        vf y[W];
        PC_EACH (i, W / 2) {
            const vf a = x[i], b = x[i + W / 2];
#if W == 16
            y[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            y[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif W == 8
            y[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
            y[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
            y[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
            y[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
        }
        PC_EACH (i, W) x[i] = y[i];
    }
}

/* W numbers of a row that has `left`, zeros behind them; one vector of pairs where native. */
PC_INLINE vf PC_NAME(load_some)(const int dtype, const int native, const char *p, int32_t left) {
#if PC_TARGET == PC_AVX512BF16
    if (native) return (vf)_mm512_maskz_loadu_epi16(PC_MASK(left), p);
#endif
    if (left >= W) return n_load(dtype, p);
    char some[W * 4] = {0};
    memcpy(some, p, (size_t)left * PC_SIZE(dtype));
    return n_load(dtype, some);
}

PC_INLINE void PC_NAME(gather_keys)(const int dtype, const int native, const pc_job *job, int32_t head,
                                    const PC_NAME(cells) *tile, float *keys, int64_t k_width) {
    const char *k = job->k.data + head * job->k.head;
    const int step = native ? 2 * W : W;
    const int32_t columns = (tile->n + PC_BLOCK_COLUMNS - 1) / PC_BLOCK_COLUMNS * PC_BLOCK_COLUMNS;
    for (int32_t t = 0; t < columns; t += W)
        for (int32_t d = 0; d < job->k.width; d += step) {
            vf x[W];
            for (int i = 0; i < W; i++) {
                x[i] = PC_NAME(load_some)(dtype, native, k + tile->k[t + i] + (int64_t)d * PC_SIZE(dtype),
                                          job->k.width - d);
                if (dtype >= PC_I8 && t + i < tile->n)
                    x[i] *= job->k.scales[tile->k_scale[t + i] + head * job->k.scale_head];
            }
            PC_NAME(transpose)(x);
            float *to = PC_NAME(in_panels)(keys, k_width, d / (step / W), t);
            PC_EACH (i, W) v_store(to + i * PC_BLOCK_COLUMNS, x[i]);
        }
}

PC_INLINE void PC_NAME(gather_values)(const int dtype, const int native, const pc_job *job, int32_t head,
                                      const PC_NAME(cells) *tile, float *values, int64_t v_width) {
    const char *v = job->v.data + head * job->v.head;
#if PC_TARGET == PC_AVX512BF16
    if (native) {
        const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                             37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
        const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
        for (int32_t t = 0; t < tile->n; t += 2)
            for (int32_t d = 0; d < v_width; d += 32) {
                const int32_t left = job->v.width - d < 0 ? 0 : job->v.width - d;
                const __m512i one = (__m512i)PC_NAME(load_some)(dtype, 1, v + tile->v[t] + (int64_t)d * 2, left);
                const __m512i two = (__m512i)PC_NAME(load_some)(dtype, 1, v + tile->v[t + 1] + (int64_t)d * 2,
                                                                t + 1 < tile->n ? left : 0);
                float *to = PC_NAME(in_panels)(values, PC_TILE, t / 2, d);
                _mm512_storeu_si512(to, _mm512_permutex2var_epi16(one, low, two));
                _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(one, high, two));
            }
        return;
    }
#endif
    for (int32_t t = 0; t < tile->n; t++) {
        const vf scale = v_set(dtype >= PC_I8 ? job->v.scales[tile->v_scale[t] + head * job->v.scale_head] : 1.0f);
        for (int32_t d = 0; d < v_width; d += W) {
            const int32_t left = job->v.width - d;
            vf x =
                left > 0 ? PC_NAME(load_some)(dtype, 0, v + tile->v[t] + (int64_t)d * PC_SIZE(dtype), left) : v_zero();
            v_store(PC_NAME(in_panels)(values, PC_TILE, t, d), dtype >= PC_I8 ? x * scale : x);
        }
    }
}

static int PC_NAME(all_finite)(int native, float *values, int64_t rows, int64_t v_width) {
    const int32_t mask = native ? 0x7f807f80 : 0x7f800000; /* exponents of numbers, or of both of a pair */
    vi wrong = v_ints(0);
    for (int64_t d = 0; d < v_width; d += W)
        for (int64_t t = 0; t < rows; t++) {
            const vi bits = (vi)v_load(PC_NAME(in_panels)(values, PC_TILE, t, d)) & mask;
            wrong |= native ? ((bits & 0x7f80) == 0x7f80) | ((bits & 0x7f800000) == 0x7f800000) : bits == mask;
        }
    return !v_any(wrong);
}

/* Weighted sums key by key, where some row does not see a key whose V is infinite or NaN: 0 times it is NaN. */
static void PC_NAME(sums_seen)(const pc_job *job, const pc_item *item, int32_t head, const PC_NAME(cells) *tile,
                               int64_t first, int64_t end, const float *s, float *acc, int64_t v_width,
                               const float *factors) {
    const pc_sequence *sequence = job->sequences + item->sequence;
    const int size = PC_SIZE(job->v.dtype);
    for (int64_t r = first; r < end; r++) {
        const pc_query *query = job->queries + item->first + r / job->group;
        float *row = acc + r * v_width;
        for (int32_t d = 0; d < job->v.width; d++) row[d] *= factors[r];
        for (int32_t t = 0; t < tile->n; t++) {
            if (!PC_NAME(sees_key)(job, sequence, query, tile->key + t)) continue;
            const char *v = job->v.data + head * job->v.head + tile->v[t];
            const float scale = job->v.scales ? job->v.scales[tile->v_scale[t] + head * job->v.scale_head] : 1.0f;
            for (int32_t d = 0; d < job->v.width; d++)
                row[d] += s[r * PC_TILE + t] * (n_one(job->v.dtype, v + (int64_t)d * size) * scale);
        }
    }
}

#undef PC_GATHER
#define PC_GATHER(format, dtype, native)                                                                               \
    static __attribute__((noinline)) void PC_NAME(keys_##format)(                                                      \
        const pc_job *job, int32_t head, const PC_NAME(cells) *tile, float *keys, int64_t k_width) {                   \
        PC_NAME(gather_keys)(dtype, native, job, head, tile, keys, k_width);                                           \
    }                                                                                                                  \
    static __attribute__((noinline)) void PC_NAME(values_##format)(                                                    \
        const pc_job *job, int32_t head, const PC_NAME(cells) *tile, float *values, int64_t v_width) {                 \
        PC_NAME(gather_values)(dtype, native, job, head, tile, values, v_width);                                       \
    }
PC_GATHER(f32, PC_F32, 0)
PC_GATHER(f16, PC_F16, 0)
PC_GATHER(bf16, PC_BF16, 0)
PC_GATHER(i8, PC_I8, 0)
PC_GATHER(e4m3, PC_E4M3, 0)
#if PC_TARGET == PC_AVX512BF16
PC_GATHER(native, PC_BF16, 1)
#endif

static const struct {
    void (*keys)(const pc_job *job, int32_t head, const PC_NAME(cells) *tile, float *keys, int64_t k_width);
    void (*values)(const pc_job *job, int32_t head, const PC_NAME(cells) *tile, float *values, int64_t v_width);
} PC_NAME(gather)[] = {
    {PC_NAME(keys_f32), PC_NAME(values_f32)},       {PC_NAME(keys_f16), PC_NAME(values_f16)},
    {PC_NAME(keys_bf16), PC_NAME(values_bf16)},     {PC_NAME(keys_i8), PC_NAME(values_i8)},
    {PC_NAME(keys_e4m3), PC_NAME(values_e4m3)},
#if PC_TARGET == PC_AVX512BF16
    {PC_NAME(keys_native), PC_NAME(values_native)},
#endif
};

static void PC_NAME(many)(const pc_job *job, const pc_item *item, void *scratch) {
    const int native = PC_NAME(is_native)(job), format = native ? 5 : job->k.dtype;
    const int64_t rows = (int64_t)item->count * job->group, padded = PC_NAME(many_rows)(job, item);
    const int64_t k_width = PC_NAME(padded)(job->k.width), v_width = PC_NAME(padded)(job->v.width);
    const int32_t head = item->head, group = job->group, depth = native ? (job->k.width + 1) / 2 : job->k.width;
    const pc_sequence *sequence = job->sequences + item->sequence;
    float *room = (float *)scratch;
    float *q = room, *acc = q + padded * k_width, *l = acc + padded * v_width, *m = l + padded * W;
    float *factors = m + padded, *s = factors + padded, *keys = s + padded * PC_TILE,
          *values = keys + PC_TILE * k_width;
    PC_NAME(cells) *tile = (PC_NAME(cells) *)(values + PC_TILE * v_width);
    int32_t n;

    memset(q, 0, (size_t)padded * (k_width + v_width + W) * sizeof(float)); /* acc and l too */
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = (item->first + r / group) * job->q.heads + head * group + r % group;
        PC_NAME(convert)(job->q.dtype, job->q.data + at * job->q.width * PC_SIZE(job->q.dtype),
                         native ? PC_BF16 : PC_F32, q + r * k_width, job->q.width);
        m[r] = PC_NEVER;
    }
    int32_t key = item->sinks_begin < item->sinks_end ? item->sinks_begin : item->begin;
    for (; PC_NAME(next_tile)(item, &key, &n); key += n) {
        int64_t first = rows, end = 0;
        int plain = 1;
        for (int64_t i = 0; i < item->count; i++) {
            const int sight = PC_NAME(sees)(sequence, job->queries + item->first + i, key, n);
            plain &= sight == PC_NAME(VISIBLE);
            if (sight == PC_NAME(HIDDEN)) continue;
            if (first == rows) first = i * group;
            end = (i + 1) * group;
        }
        if (first >= end) continue;
        const int64_t from = first / PC_BLOCK_ROWS * PC_BLOCK_ROWS;
        const int64_t to = (end + PC_BLOCK_ROWS - 1) / PC_BLOCK_ROWS * PC_BLOCK_ROWS;
        const int64_t real = to < rows ? to : rows;

        PC_NAME(locate)(job, sequence, key, n, tile);
        PC_NAME(gather)[format].keys(job, head, tile, keys, k_width);
        PC_NAME(multiply)(native, q, k_width, keys, k_width, from, to, n, depth, s, PC_TILE);
        for (int64_t r = from; r < real; r++) {
            const pc_query *query = job->queries + item->first + r / group;
            const int mixed = !plain && PC_NAME(sees)(sequence, query, key, n) != PC_NAME(VISIBLE);
            factors[r] = PC_NAME(weigh)(job, sequence, query, head * group + (int32_t)(r % group), key, n, mixed, NULL,
                                        s + r * PC_TILE, m + r, l + r * W);
        }
        for (int64_t r = real; r < to; r++) {
            factors[r] = 1;
            memset(s + r * PC_TILE, 0, PC_TILE * sizeof *s);
        }
        PC_NAME(gather)[format].values(job, head, tile, values, v_width);
        if (!plain && !PC_NAME(all_finite)(native, values, native ? (n + 1) / 2 : n, v_width)) {
            PC_NAME(sums_seen)(job, item, head, tile, from, real, s, acc, v_width, factors);
            continue;
        }
#if PC_TARGET == PC_AVX512BF16
        if (native)
            for (int64_t r = from; r < to; r++)
                PC_NAME(round_weights)(s + r * PC_TILE, (uint16_t *)(s + r * PC_TILE), n);
#endif
        PC_NAME(multiply_add)(native, s, PC_TILE, values, PC_TILE, from, to, (int32_t)v_width, native ? (n + 1) / 2 : n,
                              acc, v_width, factors);
    }
    for (int64_t r = 0; r < rows; r++)
        PC_NAME(deliver)(job, item, item->first + (int32_t)(r / group), head * group + (int32_t)(r % group), m[r],
                         v_sum(v_load(l + r * W)), acc + r * v_width);
}
