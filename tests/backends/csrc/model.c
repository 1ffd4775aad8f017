#include <math.h>
#include <stdlib.h>

#include "testing.h"

/* All numbers of a plane, [slots, heads, width]; many queries look at each. */
static double *decoded(const pc_plane *plane, int64_t block_size, int64_t slots, int32_t heads) {
    double *all = malloc(slots * heads * plane->width * sizeof *all), *to = all;
    for (int64_t slot = 0; slot < slots; slot++)
        for (int32_t head = 0; head < heads; head++) {
            const int64_t block = slot / block_size, offset = slot % block_size;
            const char *at = plane->data + block * plane->block + offset * plane->token + head * plane->head;
            const double scale =
                plane->scales
                    ? plane->scales[block * plane->scale_block + offset * plane->scale_token + head * plane->scale_head]
                    : 1;
            for (int32_t d = 0; d < plane->width; d++)
                *to++ = decode(plane->dtype, at + d * size_of(plane->dtype)) * scale;
        }
    return all;
}

model model_of(const sample *s) {
    const int64_t size = s->job.block_size, slots = (s->step.num_blocks + 1) * size;
    return (model){s, decoded(&s->job.k, size, slots, s->job.kv_heads),
                   decoded(&s->job.v, size, slots, s->job.kv_heads)};
}

void model_free(model m) {
    free(m.k);
    free(m.v);
}

/* The row of a key, in sequence n, in what `decoded` returned. */
static const double *row_of(const model *m, const double *all, int32_t width, int32_t n, int32_t key, int32_t kv_head) {
    const pc_step *step = &m->sample->step;
    const int64_t size = step->block_size, block = step->block_tables[n * step->stride + key / size];
    return all + ((block * size + key % size) * m->sample->job.kv_heads + kv_head) * width;
}

static double dot(const double *a, const double *b, int32_t n) {
    double sums[4] = {0};
    for (int32_t d = 0; d < n; d++) sums[d % 4] += a[d] * b[d];
    return sums[0] + sums[1] + sums[2] + sums[3];
}

/* Whether the query sees the key at this row coordinate. */
static int sees(const pc_step *step, int32_t n, int32_t i, int64_t key) {
    const int32_t from = step->qo_indptr[n], count = step->qo_indptr[n + 1] - from;
    const int64_t pad = step->kv_pads[n], fresh = step->kv_lens[n] - count, new = key - fresh;
    const int64_t position = new >= 0 ? step->positions[from + new] : key - pad;
    if (key < pad || key >= step->kv_lens[n]) return 0;
    if (new >= 0) {
        const int64_t bit = (int64_t)i * count + new;
        const int has_tree = step->mask && step->mask_indptr[n] < step->mask_indptr[n + 1];
        if (has_tree ? !(step->mask[step->mask_indptr[n] + bit / 8] >> bit % 8 & 1) : new > i) return 0;
    } else if (key > fresh + i) return 0;
    if (position < step->sink_tokens) return 1;
    return key >= step->kv_starts[n] && position > step->positions[from + i] - step->window;
}

void model_row(const model *m, int32_t n, int32_t i, int32_t head, row *result) {
    const sample *s = m->sample;
    const pc_job *job = &s->job;
    const pc_step *step = &s->step;
    const int32_t token = step->qo_indptr[n] + i, count = step->qo_indptr[n + 1] - step->qo_indptr[n];
    const int32_t kv_head = head / job->group, length = step->kv_lens[n], fresh = length - count;
    const int32_t size = size_of(job->q.dtype), k_width = job->k.width, v_width = job->v.width;
    const char *q = job->q.data + ((int64_t)token * job->q.heads + head) * k_width * size;
    double *scores = malloc((length + 1) * sizeof *scores), queries[MOST_WIDTH];
    double top = s->attributes.sink_logits ? s->attributes.sink_logits[head] : -INFINITY, total = 0;

    for (int32_t d = 0; d < k_width; d++) queries[d] = decode(job->q.dtype, q + d * size);
    result->score = result->value = 0;
    for (int32_t key = 0; key < length; key++) {
        if (!sees(step, n, i, key)) continue;
        double x = s->attributes.scale * dot(queries, row_of(m, m->k, k_width, n, key, kv_head), k_width), bias = 0;
        result->score = fmax(result->score, fabs(x));
        if (s->attributes.cap != 0) x = s->attributes.cap * tanh(x / s->attributes.cap);
        if (s->attributes.slopes) {
            const int64_t position = key >= fresh ? step->positions[token - i + key - fresh] : key - step->kv_pads[n];
            bias = s->attributes.slopes[head] * (double)(position - step->positions[token]);
        }
        result->score = fmax(result->score, fabs(x) + fabs(bias));
        scores[key] = x + bias;
        if (!(scores[key] <= top)) top = scores[key];
    }
    for (int32_t d = 0; d < v_width; d++) result->out[d] = 0;
    if (s->attributes.sink_logits && top > -INFINITY) total = exp(s->attributes.sink_logits[head] - top);
    for (int32_t key = 0; key < length; key++) {
        if (!sees(step, n, i, key)) continue;
        const double weight = exp(scores[key] - top), *v = row_of(m, m->v, v_width, n, key, kv_head);
        total += weight;
        for (int32_t d = 0; d < v_width; d++) {
            result->value = fabs(v[d]) > result->value ? fabs(v[d]) : result->value;
            result->out[d] += weight * v[d];
        }
    }
    for (int32_t d = 0; d < v_width && total != 0; d++) result->out[d] /= total;
    result->lse = total == 0 ? -INFINITY : top + log(total);
    free(scores);
}
