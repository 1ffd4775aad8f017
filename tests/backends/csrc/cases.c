#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"
#include "testing.h"

const char *const feature_names[FEATURES] = {"window", "sink tokens", "sink logits", "soft cap",   "slopes",   "tree",
                                             "pads",   "shared",      "native",      "hidden NaN", "long rows"};
static const char *const kind_names[KINDS] = {"decode", "draft", "chunk", "mixed"};
static const char *const dtype_names[] = {"f32", "f16", "bf16", "i8", "e4m3"};
static const int32_t widths[] = {64, 80, 96, 128, 192, 256, 7, 33};
static const int32_t block_sizes[] = {1, 3, 16, 64};

/* -- chance ---------------------------------------------------------------------------------------- */

static uint64_t state;

static uint32_t next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static int32_t below(int32_t n) { return (int32_t)(next() % (uint32_t)n); }
static int one_in(int32_t n) { return below(n) == 0; }
static int32_t between(int32_t low, int32_t high) { return low + below(high - low + 1); }

static float normal(void) { /* near enough */
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(next() >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f;
}

/* -- memory: of exactly the size that is asked for, so that a sanitizer sees what reads too far ---------- */

static void *own(sample *s, int64_t bytes, int fill) {
    void *memory;
    if (s->num_owned == 32 || posix_memalign(&memory, 64, bytes > 0 ? (size_t)bytes : 1)) abort();
    memset(memory, fill, (size_t)bytes);
    s->owned[s->num_owned++] = memory;
    return memory;
}

void sample_free(sample *s) {
    while (s->num_owned) free(s->owned[--s->num_owned]);
}

/* -- the step -------------------------------------------------------------------------------------------- */

typedef struct shape { /* of the sequences, before they get blocks */
    int32_t n, counts[MOST_SEQUENCES], older[MOST_SEQUENCES], pads[MOST_SEQUENCES], starts[MOST_SEQUENCES];
    int32_t shared_blocks; /* all share so many */
} shape;

static shape make_shape(sample *s, int kind, int32_t group, int32_t block_size, int32_t budget) {
    shape h = {.n = between(1, MOST_SEQUENCES)};
    const int sharing = one_in(5);
    const int is_long = one_in(12); /* spans of keys are cut at some of these lengths */
    const int32_t most = is_long ? 2300 : one_in(2) ? 200 : 40, least_many = 16 / group + 1;
    if (is_long) h.n = between(1, 2), s->features |= 1u << F_LONG;
    if (sharing && !is_long) h.n = between(2, MOST_SEQUENCES);
    for (int32_t i = 0; i < h.n; i++) {
        const int what = kind == MIXED ? below(MIXED) : kind;
        h.counts[i] = what == DECODE ? 1 : what == DRAFT ? between(2, 6) : between(least_many, least_many + 40);
        h.older[i] = is_long ? between(most / 8, most) : below(most);
        while (h.counts[i] > 8 && (int64_t)h.counts[i] * (h.older[i] + h.counts[i]) > budget) {
            h.older[i] = h.older[i] * 2 / 3;
            if (h.older[i] < 64) h.counts[i] = h.counts[i] * 3 / 4;
        }
        if (h.n > 1 && one_in(12)) h.counts[i] = 0;
        if (one_in(4) && !sharing) h.pads[i] = between(1, 2 * h.older[i] / 3 + 9), s->features |= 1u << F_PADS;
    }
    if (sharing && h.n > 1) {
        const int32_t pad = one_in(3) ? between(1, 9) : 0;
        h.shared_blocks = between(1, 5 + (block_size < 16 ? 60 / block_size : 0));
        for (int32_t i = 0; i < h.n; i++) {
            h.pads[i] = pad;
            h.older[i] = h.shared_blocks * block_size + below(50);
        }
        s->features |= 1u << F_SHARED;
    }
    for (int32_t i = 0; i < h.n; i++) h.starts[i] = h.pads[i];
    return h;
}

/* Positions, and bits where there are trees: each new token has an earlier one, or the past, as parent. `branches`
 * without trees: positions of a tree, of which everything earlier is seen. */
static void make_positions(sample *s, const shape *h, int trees, int branches, int64_t *positions, uint8_t *bits,
                           int64_t *indptr) {
    int64_t bytes = 0;
    for (int32_t n = 0; n < h->n; n++) {
        const int32_t count = h->counts[n], from = s->step.qo_indptr[n];
        const int tree = trees && !one_in(4);
        uint8_t sees[64][64] = {{0}};
        for (int32_t i = 0; i < count; i++) {
            const int32_t parent = (tree || branches) && i ? between(i > 4 ? i - 4 : -1, i - 1) : i - 1;
            positions[from + i] = parent < 0 ? h->older[n] - h->pads[n] : positions[from + parent] + 1;
            if (!tree) continue;
            if (parent >= 0) memcpy(sees[i], sees[parent], sizeof sees[i]);
            sees[i][i] = 1;
            for (int32_t k = 0; k < count; k++) {
                const int64_t bit = (int64_t)i * count + k;
                bits[bytes + bit / 8] |= (uint8_t)(sees[i][k] << bit % 8);
            }
        }
        indptr[n] = bytes;
        if (tree) bytes += ((int64_t)count * count + 7) / 8;
    }
    indptr[h->n] = bytes;
}

static void make_step(sample *s, shape *h, int trees) {
    pc_step *step = &s->step;
    const int32_t size = s->job.block_size;
    int32_t *indptr = own(s, (h->n + 1) * 4, 0), *lens = own(s, h->n * 4, 0), *pads = own(s, h->n * 4, 0);
    int32_t *starts = own(s, h->n * 4, 0), most = 1, blocks = 0;
    for (int32_t n = 0; n < h->n; n++) {
        lens[n] = h->older[n] + h->counts[n], pads[n] = h->pads[n], starts[n] = h->starts[n];
        indptr[n + 1] = indptr[n] + h->counts[n];
        const int32_t held = (lens[n] + size - 1) / size;
        most = held > most ? held : most;
        blocks += held;
    }
    step->num_sequences = h->n, step->num_tokens = indptr[h->n], step->block_size = size;
    step->num_blocks = blocks + between(1, 3), step->width = most + below(3), step->stride = step->width;
    step->qo_indptr = indptr, step->kv_lens = lens, step->kv_pads = pads, step->kv_starts = starts;
    step->window = INT64_C(1) << 40, step->sink_tokens = 0;
    if (one_in(3)) {
        step->window = between(1, 90), s->features |= 1u << F_WINDOW;
        if (one_in(2)) step->sink_tokens = between(1, 30), s->features |= 1u << F_SINKS;
        for (int32_t n = 0; n < h->n; n++) /* what no query sees may have been given back */
            if (!h->shared_blocks && one_in(2) && h->older[n] - step->window + 1 > pads[n])
                starts[n] = h->older[n] - (int32_t)step->window + 1;
    }

    int32_t *tables = own(s, (int64_t)h->n * step->width * 4, 0xff), *ids = own(s, step->num_blocks * 4, 0), used = 0;
    for (int32_t i = 0; i < step->num_blocks; i++) ids[i] = i + 1;
    for (int32_t i = step->num_blocks - 1; i > 0 && one_in(8) == 0; i--) {
        const int32_t k = below(i + 1), kept = ids[i];
        ids[i] = ids[k], ids[k] = kept;
    }
    for (int32_t n = 0; n < h->n; n++)
        for (int32_t b = 0; b * size < lens[n]; b++) {
            int32_t *entry = tables + n * step->stride + b;
            const int released = (b + 1) * size <= starts[n] && b * size >= pads[n] + step->sink_tokens;
            *entry = n && b < h->shared_blocks ? tables[b] : released && starts[n] > pads[n] ? 0 : ids[used++];
        }
    step->block_tables = tables;

    int64_t *positions = own(s, step->num_tokens * 8, 0), *spans = own(s, (h->n + 1) * 8, 0);
    uint8_t *bits = own(s, trees ? MOST_SEQUENCES * 64 * 64 / 8 : 0, 0);
    make_positions(s, h, trees, one_in(8), positions, bits, spans);
    step->positions = positions;
    if (trees) step->mask = bits, step->mask_indptr = spans, s->features |= spans[h->n] ? 1u << F_TREE : 0;
    if (h->shared_blocks) {
        int32_t *shared = own(s, 3 * 4, 0);
        shared[1] = h->n, shared[2] = h->shared_blocks + one_in(5); /* one more is not true, and must not matter */
        step->shared = shared, step->num_shared = 1;
    }
}

/* -- the pool -------------------------------------------------------------------------------------------- */

/* Everything but the zero block is NaN, where there are any, until something is stored. */
static pc_plane make_plane(sample *s, int32_t dtype, int32_t width, int hnd) {
    const int64_t row = (int64_t)width * size_of(dtype), heads = s->job.kv_heads, size = s->job.block_size;
    pc_plane plane = {.block = row * heads * size, .width = width, .dtype = dtype};
    plane.token = hnd ? row : row * heads;
    plane.head = hnd ? row * size : row;
    plane.data = own(s, plane.block * (s->step.num_blocks + 1), 0xff);
    memset(plane.data, 0, plane.block);
    if (dtype < PC_I8) return plane;
    plane.scale_block = heads * size;
    plane.scale_token = hnd ? 1 : heads;
    plane.scale_head = hnd ? size : 1;
    plane.scales = own(s, plane.scale_block * (s->step.num_blocks + 1) * 4, 0xff);
    memset(plane.scales, 0, plane.scale_block * 4);
    return plane;
}

static void make_slots(sample *s, const shape *h) {
    const pc_step *step = &s->step;
    const int32_t size = step->block_size;
    int64_t *slots = own(s, ((int64_t)step->num_blocks + 1) * size * 8, 0);
    for (int32_t n = 0; n < h->n; n++)
        for (int32_t key = n ? h->shared_blocks * size : 0; key < step->kv_lens[n]; key++) {
            const int32_t block = step->block_tables[n * step->stride + key / size];
            if (block && key >= step->kv_pads[n]) slots[s->stored++] = (int64_t)block * size + key % size;
        }
    s->slots = slots;
}

static pc_rows make_rows(sample *s, const pc_kernels *kernels, int64_t n, int32_t heads, int32_t width, int32_t dtype,
                         float size) {
    pc_rows rows = {own(s, n * heads * width * size_of(dtype), 0), heads, width, dtype};
    for (int64_t i = 0; i < n * heads * width; i++) {
        const float x = normal() * size;
        kernels->convert(PC_F32, &x, dtype, rows.data + i * size_of(dtype), 1);
    }
    return rows;
}

/* The last new token is NaN: only the query that sees it may notice. */
static void spoil_last(sample *s, int64_t token) {
    pc_rows *const rows[] = {&s->k, &s->v};
    const int what = below(3); /* K, V or both */
    for (int i = 0; i < 2; i++) {
        const int64_t bytes = (int64_t)rows[i]->heads * rows[i]->width * size_of(rows[i]->dtype);
        if (what == 1 - i) continue;
        for (int64_t at = 0; at < bytes; at++) rows[i]->data[token * bytes + at] = (char)0xff;
    }
    s->features |= 1u << F_HIDDEN_NAN;
}

void sample_make(sample *s, int64_t number, const pc_kernels *kernels) {
    memset(s, 0, sizeof *s);
    state = 0x9e3779b97f4a7c15u * (uint64_t)(number + 1);
    for (int i = 0; i < 8; i++) next();
    const int32_t dtype = (int32_t)(number % 5), width = widths[number / 5 % 8], group = 1 + (int32_t)(number / 40 % 9);
    const int kind = below(KINDS), hnd = one_in(2), trees = one_in(4), is_loud = one_in(6);
    pc_job *job = &s->job;
    job->group = group, job->kv_heads = between(1, group > 4 ? 2 : 3), job->block_size = block_sizes[below(4)];
    const int32_t v_width = one_in(4) ? widths[below(8)] : width, q_heads = group * job->kv_heads;
    shape h = make_shape(s, kind, group, job->block_size, 1500000 / (q_heads * (width + v_width)));
    make_step(s, &h, trees);

    job->k = make_plane(s, dtype, width, hnd), job->v = make_plane(s, dtype, v_width, hnd);
    make_slots(s, &h);
    const int32_t source = below(3);
    s->k = make_rows(s, kernels, s->stored, job->kv_heads, width, source, 1);
    s->v = make_rows(s, kernels, s->stored, job->kv_heads, v_width, source, 1);
    if (dtype <= PC_BF16 && one_in(5) && h.counts[h.n - 1] > 1) spoil_last(s, s->stored - 1);
    pc_store(kernels, &job->k, &s->k, job->block_size, s->slots, s->stored, 2);
    pc_store(kernels, &job->v, &s->v, job->block_size, s->slots, s->stored, 2);

    job->q = make_rows(s, kernels, s->step.num_tokens, q_heads, width, below(3), is_loud ? 6 : 1);
    job->out = (pc_rows){own(s, (int64_t)s->step.num_tokens * q_heads * v_width * 4, 0xff), q_heads, v_width, below(3)};
    job->lse = own(s, (int64_t)s->step.num_tokens * q_heads * 4, 0xff);
    job->rule.native = one_in(2);
    if (job->rule.native && kernels->has_native && dtype == PC_BF16) s->features |= 1u << F_NATIVE;
    s->attributes.scale = one_in(2) ? 1 / sqrt(width) : 0.2;
    if (one_in(4)) s->attributes.cap = between(1, 40), s->features |= 1u << F_CAP;
    float *slopes = own(s, q_heads * 4, 0), *logits = own(s, q_heads * 4, 0);
    for (int32_t i = 0; i < q_heads; i++) {
        slopes[i] = exp2f(-8.0f * (float)(i + 1) / (float)q_heads);
        logits[i] = one_in(5) ? -INFINITY : 3 * normal();
    }
    if (one_in(4)) s->attributes.slopes = slopes, s->features |= 1u << F_SLOPES;
    if (one_in(4)) s->attributes.sink_logits = logits, s->features |= 1u << F_LOGITS;
    int at = snprintf(s->name, sizeof s->name, "case %lld: %s, %s %s, %d/%d x %d heads of %d -> %d, blocks of %d",
                      (long long)number, kind_names[kind], dtype_names[dtype], hnd ? "HND" : "NHD", q_heads,
                      job->kv_heads, h.n, width, v_width, job->block_size);
    for (int f = 0; f < FEATURES; f++)
        if (s->features >> f & 1) at += snprintf(s->name + at, sizeof s->name - at, ", %s", feature_names[f]);
}

int sample_check_stored(const sample *s) {
    const pc_plane *const planes[] = {&s->job.k, &s->job.v};
    const pc_rows *const sources[] = {&s->k, &s->v};
    const int64_t size = s->job.block_size, slots = (s->step.num_blocks + 1) * size;
    static const double relative[] = {0, 0x1p-11, 0x1p-8, 0, 0x1p-4},
                        absolute[] = {0, 0x1p-25, 0x1p-130, 0.50001, 0x1p-10};
    int wrong = 0;
    char *is_stored = calloc(slots, 1);
    for (int64_t i = 0; i < s->stored; i++) is_stored[s->slots[i]] = 1;
    for (int which = 0; which < 2; which++) {
        const pc_plane *plane = planes[which];
        const int64_t row = (int64_t)plane->width * size_of(plane->dtype);
        for (int64_t slot = 0; slot < slots; slot++)
            for (int32_t head = 0; head < s->job.kv_heads && !is_stored[slot]; head++) {
                const char *at =
                    plane->data + slot / size * plane->block + slot % size * plane->token + head * plane->head;
                for (int64_t i = 0; i < row; i++) wrong += at[i] != (slot < size ? 0 : (char)0xff);
            }
        for (int64_t i = 0; i < s->stored * s->job.kv_heads * plane->width; i++) {
            const int64_t d = i % plane->width, head = i / plane->width % s->job.kv_heads,
                          slot = s->slots[i / plane->width / s->job.kv_heads];
            const char *at = plane->data + slot / size * plane->block + slot % size * plane->token + head * plane->head;
            const double x = decode(sources[which]->dtype, sources[which]->data + i * size_of(sources[which]->dtype));
            double got = decode(plane->dtype, at + d * size_of(plane->dtype)), scale = 1;
            if (plane->scales)
                scale = plane->scales[slot / size * plane->scale_block + slot % size * plane->scale_token +
                                      head * plane->scale_head];
            const double off = fabs(got * scale - x),
                         most = relative[plane->dtype] * fabs(x) + absolute[plane->dtype] * scale;
            wrong += isnan(x) ? !isnan(got) : !(off <= most);
        }
    }
    free(is_stored);
    return wrong;
}
