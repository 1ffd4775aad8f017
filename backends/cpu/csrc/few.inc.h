/* Attention of few queries (decoding, short drafts): K/V are read where they are, once for all the
 * query rows of a KV head. No include guard on purpose.
 *
 * Order of work: tile of keys, KV head, so that memory is read in the order in which it lies.
 * While the rows of one head and tile (a "cell") are computed, the cells one and two further on are
 * prefetched, line by line beside the loads that the core is busy with. Bursts of prefetches gain
 * nothing, and hints are dropped under pressure, which is why each line is asked for twice; but once
 * where numbers of 8 bits keep the core busy for longer than memory needs.
 *
 * The rows of a head are taken in groups of at most 4: GROUP x TOKENS accumulators for products,
 * GROUP x VECTORS for weighted sums. Head sizes are runtime numbers; dtype and group are
 * constants of each call, from which the compiler makes one loop each. */

#undef PC_GROUP_MAX
#define PC_GROUP_MAX 4
#undef PC_TOKENS
#define PC_TOKENS(rows) (PC_ACCUMULATORS / ((rows) == 3 ? 4 : (rows)))

typedef struct PC_NAME(cells) { /* a tile of keys: where K and V of each are, from the first head on */
    int32_t key, n;
    int64_t k[PC_TILE], v[PC_TILE];             /* bytes; filled up with the last */
    int64_t k_scale[PC_TILE], v_scale[PC_TILE]; /* floats */
} PC_NAME(cells);

typedef struct PC_NAME(few_state) {
    const pc_job *job;
    const pc_item *item;
    const struct PC_NAME(few_format) *format;
    const pc_sequence *sequence;
    int native;
    int32_t rows, q_width, v_width; /* per head; of scratch rows, in floats */
    float *q;                       /* [heads, rows, q_width]; brain floats in the same room where native */
    float *acc;                     /* [heads, rows, v_width] */
    float *m, *l;                   /* [heads, rows], [heads, rows, W] */
    float *s;                       /* [rows, PC_TILE] products, then weights */
    float *k_factors, *v_factors;   /* [PC_TILE] */
    PC_NAME(cells) *tiles;          /* ring of 4 */
} PC_NAME(few_state);

/* Whether bfloat16 is multiplied as it is, q and weights being rounded to it. */
PC_INLINE int PC_NAME(is_native)(const pc_job *job) {
    return PC_TARGET == PC_AVX512BF16 && job->k.dtype == PC_BF16 && job->rule.native;
}

PC_INLINE int64_t PC_NAME(padded)(int64_t n) { return (n + PC_PAD - 1) / PC_PAD * PC_PAD; }

static int64_t PC_NAME(few_scratch)(const pc_job *job, const pc_item *item) {
    const int64_t rows = (int64_t)item->count * job->group, all = rows * item->heads;
    return sizeof(float) * (all * (PC_NAME(padded)(job->k.width) + PC_NAME(padded)(job->v.width) + W) +
                            PC_NAME(padded)(all) + rows * PC_TILE + 2 * PC_TILE) +
           4 * sizeof(PC_NAME(cells)) + 64;
}

static void PC_NAME(locate)(const pc_job *job, const pc_sequence *sequence, int32_t key, int32_t n,
                            PC_NAME(cells) *tile) {
    const int32_t size = job->block_size;
    int32_t logical = key / size, offset = key % size;
    tile->key = key, tile->n = n;
    for (int32_t i = 0; i < n; logical++, offset = 0) {
        const int64_t block = sequence->table[logical], run = n - i < size - offset ? n - i : size - offset;
        for (int64_t t = 0; t < run; t++) {
            tile->k[i + t] = block * job->k.block + (offset + t) * job->k.token;
            tile->v[i + t] = block * job->v.block + (offset + t) * job->v.token;
        }
        if (job->k.scales)
            for (int64_t t = 0; t < run; t++) {
                tile->k_scale[i + t] = block * job->k.scale_block + (offset + t) * job->k.scale_token;
                tile->v_scale[i + t] = block * job->v.scale_block + (offset + t) * job->v.scale_token;
            }
        i += run;
    }
    for (int32_t i = n; i < PC_TILE; i++) tile->k[i] = tile->k[n - 1], tile->v[i] = tile->v[n - 1];
}

/* The tile after [key, ...): up to the next multiple of PC_TILE, within the item's two spans of keys. */
PC_INLINE int PC_NAME(next_tile)(const pc_item *item, int32_t *key, int32_t *n) {
    if (*key >= item->sinks_end && *key < item->begin) *key = item->begin;
    const int32_t end = *key < item->sinks_end ? item->sinks_end : item->end;
    if (*key >= end) return 0;
    const int64_t cut = (int64_t)(*key / PC_TILE) * PC_TILE + PC_TILE; /* beyond int32 where the row ends there */
    *n = (int32_t)((cut < end ? cut : end) - *key);
    return 1;
}

typedef struct PC_NAME(ahead) { /* what to prefetch: the rows of the next cell and of the one after it */
    const char *near, *far;
    const int64_t *near_at, *far_at;
} PC_NAME(ahead);

/* Products of `rows` rows with 16 keys, into s[row][0..16). */
PC_INLINE void PC_NAME(products)(const int dtype, const int rows, const int fetch, const float *q, int64_t q_width,
                                 const char *k, const int64_t *at, int32_t width, float *s, const PC_NAME(ahead) *ahead,
                                 int32_t first) {
    const int tokens = PC_TOKENS(rows), size = PC_SIZE(dtype), line = 64 / size;
    const int step = line < W ? W : line; /* numbers between two prefetches of a row */
    const int64_t whole = width / step * step, vectors = width / W * W;
    for (int t0 = 0; t0 < 16; t0 += tokens) {
        const char *row[PC_ACCUMULATORS], *near[PC_ACCUMULATORS], *far[PC_ACCUMULATORS];
        vf a[PC_ACCUMULATORS];
        PC_EACH (i, PC_ACCUMULATORS) a[i] = v_zero();
        PC_EACH (t, tokens) {
            row[t] = k + at[t0 + t];
            near[t] = fetch ? ahead->near + ahead->near_at[first + t0 + t] : NULL;
            far[t] = fetch ? ahead->far + ahead->far_at[first + t0 + t] : NULL;
        }
        int64_t d = 0;
        for (; d < whole; d += step) {
            if (fetch)
                PC_EACH (t, tokens) {
                    PC_PREFETCH(near[t] + d * size);
                    if (size > 1) PC_PREFETCH(far[t] + d * size);
                }
            PC_EACH_BY (e, step, W) {
                vf y[PC_GROUP_MAX];
                PC_EACH (g, rows) {
                    y[g] = v_load(q + g * q_width + d + e);
                    PC_HOLD(y[g]);
                }
                PC_EACH (t, tokens) {
                    vf x = n_load(dtype, row[t] + d * size + e * size);
                    if (rows > 1) PC_HOLD(x);
                    PC_EACH (g, rows) a[g * tokens + t] += x * y[g];
                }
            }
        }
        for (; d < vectors; d += W)
            PC_EACH (t, tokens) {
                const vf x = n_load(dtype, row[t] + d * size);
                PC_EACH (g, rows) a[g * tokens + t] += x * v_load(q + g * q_width + d);
            }
        float sums[PC_ACCUMULATORS];
        PC_EACH_BY (i, PC_ACCUMULATORS, W) v_store(sums + i, v_sums(a + i));
        PC_EACH (g, rows) memcpy(s + g * PC_TILE + t0, sums + g * tokens, tokens * sizeof *s);
    }
}

/* Adds weights times V to `vectors` vectors of each row's sums, from number d on. */
PC_INLINE void PC_NAME(sum_columns)(const int dtype, const int rows, const int vectors, const int fetch, const float *p,
                                    const char *v, const int64_t *at, int32_t n, int32_t d, float *acc, int64_t v_width,
                                    const PC_NAME(ahead) *ahead) {
    const int size = PC_SIZE(dtype);
    vf a[4][8];
    PC_EACH (g, rows)
        PC_EACH (i, vectors) a[g][i] = v_load(acc + g * v_width + d + i * W);
    v += (int64_t)d * size;
    const char *near_base = ahead->near + (int64_t)d * size, *far_base = ahead->far + (int64_t)d * size;
    const int64_t *near_at = ahead->near_at, *far_at = ahead->far_at;
    for (int64_t t = 0; t < n; t++) {
        const char *row = v + at[t];
        if (fetch) {
            const char *near = near_base + near_at[t], *far = far_base + far_at[t];
            PC_EACH_BY (e, vectors * W * size, 64) {
                PC_PREFETCH(near + e);
                if (size > 1) PC_PREFETCH(far + e);
            }
        }
        vf y[4];
        PC_EACH (g, rows) y[g] = v_set(p[g * PC_TILE + t]);
        PC_EACH (i, vectors) {
            vf x = n_load(dtype, row + i * W * size);
            if (rows > 1) PC_HOLD(x);
            PC_EACH (g, rows) a[g][i] += x * y[g];
        }
    }
    PC_EACH (g, rows)
        PC_EACH (i, vectors) v_store(acc + g * v_width + d + i * W, a[g][i]);
}

PC_INLINE void PC_NAME(sums)(const int dtype, const int rows, const int fetch, const float *p, const char *v,
                             const int64_t *at, int32_t n, int32_t width, float *acc, int64_t v_width,
                             const PC_NAME(ahead) *ahead) {
    const int most = rows == 3 ? 4 : PC_ACCUMULATORS / rows < 8 ? PC_ACCUMULATORS / rows : 8;
    const int some = most < 4 ? most : 4;
    int32_t d = 0;
    for (; d + most * W <= width; d += most * W)
        PC_NAME(sum_columns)(dtype, rows, most, fetch, p, v, at, n, d, acc, v_width, ahead);
    if (some < most && d + some * W <= width) {
        PC_NAME(sum_columns)(dtype, rows, some, fetch, p, v, at, n, d, acc, v_width, ahead);
        d += some * W;
    }
    for (; d + W <= width; d += W) PC_NAME(sum_columns)(dtype, rows, 1, fetch, p, v, at, n, d, acc, v_width, ahead);
}

#if PC_TARGET == PC_AVX512BF16
#include "few_native.inc.h"
#endif

#include "few_formats.inc.h"

/* The numbers of a head beyond the last multiple of W, one by one. */
static void PC_NAME(products_rest)(const pc_job *job, int32_t rows, const float *q, int64_t q_width, const char *k,
                                   const int64_t *at, int32_t n, float *s) {
    const int size = PC_SIZE(job->k.dtype);
    for (int32_t d = job->k.width / W * W; d < job->k.width; d++)
        for (int32_t t = 0; t < n; t++) {
            const float x = n_one(job->k.dtype, k + at[t] + (int64_t)d * size);
            for (int32_t g = 0; g < rows; g++) s[g * PC_TILE + t] += x * q[g * q_width + d];
        }
}

static void PC_NAME(sums_rest)(const pc_job *job, int32_t rows, const float *p, const char *v, const int64_t *at,
                               int32_t n, float *acc, int64_t v_width) {
    const int size = PC_SIZE(job->v.dtype);
    for (int32_t d = job->v.width / W * W; d < job->v.width; d++)
        for (int32_t t = 0; t < n; t++) {
            const float x = n_one(job->v.dtype, v + at[t] + (int64_t)d * size);
            for (int32_t g = 0; g < rows; g++) acc[g * v_width + d] += x * p[g * PC_TILE + t];
        }
}

/* One KV head and one tile of keys: products, weights, weighted sums. */
static void PC_NAME(few_cell)(const PC_NAME(few_state) *state, const PC_NAME(cells) *tile, int32_t h,
                              const PC_NAME(ahead) *k_ahead, const PC_NAME(ahead) *v_ahead) {
    const pc_job *job = state->job;
    const pc_item *item = state->item;
    const PC_NAME(few_format) *format = state->format;
    const int32_t head = item->head + h, rows = state->rows, n = tile->n, group = job->group;
    const char *k = job->k.data + head * job->k.head, *v = job->v.data + head * job->v.head;
    const int64_t first = (int64_t)h * rows;
    const float *q = state->q + first * state->q_width, *factors = NULL;
    float *acc = state->acc + first * state->v_width, *s = state->s;
    if (job->k.scales) {
        for (int32_t i = 0; i < n; i++) {
            state->k_factors[i] = job->k.scales[tile->k_scale[i] + head * job->k.scale_head] * job->rule.scale;
            state->v_factors[i] = job->v.scales[tile->v_scale[i] + head * job->v.scale_head];
        }
        factors = state->k_factors;
    }

    for (int32_t t = 0; t < n; t += 16)
        for (int32_t r = 0; r < rows; r += PC_GROUP_MAX) {
            const int32_t taken = rows - r < PC_GROUP_MAX ? rows - r : PC_GROUP_MAX;
            format->products[taken == 4 && r ? PC_NOT_AGAIN : taken](
                q + r * state->q_width, state->q_width, k, tile->k + t, job->k.width, s + r * PC_TILE + t, k_ahead, t);
        }
    if (!state->native && job->k.width % W) PC_NAME(products_rest)(job, rows, q, state->q_width, k, tile->k, n, s);

    int mixed_rows = 0;
    for (int32_t r = 0; r < rows; r++) {
        const pc_query *query = job->queries + item->first + r / group;
        const int mixed = PC_NAME(sees)(state->sequence, query, tile->key, n) != PC_NAME(VISIBLE);
        float *sr = s + r * PC_TILE, *row = acc + r * state->v_width;
        mixed_rows |= mixed;
        const float rescale = PC_NAME(weigh)(job, state->sequence, query, head * group + r % group, tile->key, n, mixed,
                                             factors, sr, state->m + first + r, state->l + (first + r) * W);
        if (rescale != 1)
            for (int32_t d = 0; d < state->v_width; d += W) v_store(row + d, v_load(row + d) * rescale);
        if (factors)
            for (int32_t j = 0; j < n; j += W) { /* the scale of a key that is not seen may be NaN */
                const vf p = v_load(sr + j), scaled = p * v_load(state->v_factors + j);
                v_store(sr + j, (vf)((vi)scaled & (p != v_zero())));
            }
#if PC_TARGET == PC_AVX512BF16
        if (state->native) PC_NAME(round_weights)(sr, (uint16_t *)sr, n);
#endif
    }

    const int64_t *at = tile->v;
    int64_t shown[PC_TILE];
    for (int32_t r = 0, end = rows; r < rows;) {
        if (mixed_rows && r % group == 0) { /* what a query does not see may be NaN: it reads zeros there */
            const pc_query *query = job->queries + item->first + r / group;
            for (int32_t i = 0; i < n; i++)
                shown[i] = PC_NAME(sees_key)(job, state->sequence, query, tile->key + i) ? tile->v[i] : 0;
            at = shown, end = r + group;
        }
        const int32_t taken = end - r < PC_GROUP_MAX ? end - r : PC_GROUP_MAX;
        float *row = acc + r * state->v_width;
        format->sums[taken == 4 && r ? PC_NOT_AGAIN : taken](s + r * PC_TILE, v, at, n, job->v.width, row,
                                                             state->v_width, v_ahead);
        if (!state->native && job->v.width % W)
            PC_NAME(sums_rest)(job, taken, s + r * PC_TILE, v, at, n, row, state->v_width);
        r += taken;
    }
}

static void PC_NAME(few)(const pc_job *job, const pc_item *item, void *scratch) {
    const int native = PC_NAME(is_native)(job);
    const int32_t rows = item->count * job->group, heads = item->heads, all = rows * heads;
    const int32_t q_width = (int32_t)PC_NAME(padded)(job->k.width), v_width = (int32_t)PC_NAME(padded)(job->v.width);
    PC_NAME(few_state) state = {.job = job,
                                .item = item,
                                .format = PC_NAME(format_of)(job),
                                .sequence = job->sequences + item->sequence,
                                .native = native,
                                .rows = rows,
                                .q_width = q_width,
                                .v_width = v_width};
    float *room = (float *)scratch;
    state.q = room, room += (int64_t)all * q_width;
    state.acc = room, room += (int64_t)all * v_width;
    state.l = room, room += (int64_t)all * W;
    state.s = room, room += rows * PC_TILE;
    state.k_factors = room, room += PC_TILE;
    state.v_factors = room, room += PC_TILE;
    state.m = room, room += PC_NAME(padded)(all);
    state.tiles = (PC_NAME(cells) *)room;

    memset(state.acc, 0, (size_t)all * (v_width + W) * sizeof(float)); /* and l behind it */
    for (int32_t i = 0; i < all; i++) {
        const int32_t h = i / rows, r = i % rows, token = item->first + r / job->group;
        const int64_t at = (int64_t)token * job->q.heads + (item->head + h) * job->group + r % job->group;
        const char *from = job->q.data + at * job->q.width * PC_SIZE(job->q.dtype);
        float *to = state.q + (int64_t)i * q_width;
        memset(to, 0, q_width * sizeof *to);
        PC_NAME(convert)(job->q.dtype, from, native ? PC_BF16 : PC_F32, to, job->q.width);
        state.m[i] = PC_NEVER;
    }

    int32_t known = 0, key = item->sinks_begin < item->sinks_end ? item->sinks_begin : item->begin, n;
    for (int32_t current = 0;; current++) {
        while (known < current + 3 && PC_NAME(next_tile)(item, &key, &n)) {
            PC_NAME(locate)(job, state.sequence, key, n, state.tiles + known++ % 4);
            key += n;
        }
        if (current == known) break;
        for (int32_t h = 0; h < heads; h++) {
            PC_NAME(ahead) k_ahead, v_ahead;
            for (int32_t distance = 1; distance <= 2; distance++) {
                int32_t tile = current + (h + distance) / heads, head = item->head + (h + distance) % heads;
                if (tile >= known) tile = current, head = item->head + h;
                const PC_NAME(cells) *cells = state.tiles + tile % 4;
                *(distance == 1 ? &k_ahead.near : &k_ahead.far) = job->k.data + head * job->k.head;
                *(distance == 1 ? &v_ahead.near : &v_ahead.far) = job->v.data + head * job->v.head;
                *(distance == 1 ? &k_ahead.near_at : &k_ahead.far_at) = cells->k;
                *(distance == 1 ? &v_ahead.near_at : &v_ahead.far_at) = cells->v;
            }
            PC_NAME(few_cell)(&state, state.tiles + current % 4, h, &k_ahead, &v_ahead);
        }
    }

    for (int32_t i = 0; i < all; i++) {
        const int32_t h = i / rows, r = i % rows;
        PC_NAME(deliver)(job, item, item->first + r / job->group, (item->head + h) * job->group + r % job->group,
                         state.m[i], v_sum(v_load(state.l + (int64_t)i * W)), state.acc + (int64_t)i * v_width);
    }
}
