/* The kernels without Python: random steps, compared with a model in float64, and with themselves.
 *
 *   check --supported              names of the tables that this processor runs
 *   check TABLE [EVERY] [NUMBER]   with that table; only every EVERY-th case; only that case
 *
 * Prints a line per case that fails, then what was done; the exit status says whether all was right. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "testing.h"

enum { CASES = 720, MOST_SHOWN = 40 };

static int64_t out_bytes(const pc_job *job) {
    return (int64_t)job->out.heads * job->out.width * size_of(job->out.dtype);
}

/* -- runs -------------------------------------------------------------------------------------------- */

typedef struct result {
    char *out;
    float *lse;
} result;

static result room_for(const sample *s) {
    const int64_t tokens = s->step.num_tokens + 1, logs = tokens * s->job.q.heads * 4;
    result r = {malloc(tokens * out_bytes(&s->job)), malloc(logs)};
    memset(r.out, 0xff, tokens * out_bytes(&s->job));
    memset(r.lse, 0xff, logs);
    return r;
}

static void free_result(result r) {
    free(r.out);
    free(r.lse);
}

static int same(const sample *s, const result *a, const result *b, int64_t at, int64_t tokens) {
    const int64_t heads = s->job.q.heads, row = out_bytes(&s->job);
    return !memcmp(a->out + at * row, b->out, tokens * row) && !memcmp(a->lse + at * heads, b->lse, tokens * heads * 4);
}

/* Rules as the kernels want them. `scaled` has room for slopes and sink logits. */
static pc_job job_of(const sample *s, result r, float *scaled) {
    const attributes *a = &s->attributes;
    const double log2e = 1.4426950408889634;
    const int32_t heads = s->job.q.heads;
    pc_job job = s->job;
    for (int32_t h = 0; h < heads; h++) {
        scaled[h] = a->slopes ? (float)(a->slopes[h] * log2e) : 0;
        scaled[heads + h] = a->sink_logits ? (float)(a->sink_logits[h] * log2e) : 0;
    }
    job.rule.scale = (float)(a->cap != 0 ? a->scale / a->cap : a->scale * log2e);
    job.rule.cap = (float)(a->cap * log2e);
    job.rule.slopes = a->slopes ? scaled : NULL;
    job.rule.sink_logits = a->sink_logits ? scaled + heads : NULL;
    job.out.data = r.out;
    job.lse = r.lse;
    return job;
}

static result run(const pc_kernels *kernels, const sample *s, const pc_step *step, int64_t first, int32_t threads) {
    float *scaled = malloc(s->job.q.heads * 2 * sizeof *scaled);
    result r = room_for(s);
    pc_job job = job_of(s, r, scaled);
    pc_plan plan;
    job.q.data += first * job.q.heads * job.q.width * size_of(job.q.dtype);
    if (pc_plan_make(&plan, step, job.kv_heads, job.group) != PC_OK) printf("FAIL %s: no plan\n", s->name);
    else pc_attend(kernels, &job, &plan, threads);
    pc_plan_free(&plan);
    free(scaled);
    return r;
}

/* As pc_attend, but last items first, each in scratch of exactly the size it asks for, full of NaN. */
static result run_backwards(const pc_kernels *kernels, const sample *s) {
    float *scaled = malloc(s->job.q.heads * 2 * sizeof *scaled);
    result r = room_for(s);
    pc_job job = job_of(s, r, scaled);
    pc_plan plan;
    void *scratch;
    if (pc_plan_make(&plan, &s->step, job.kv_heads, job.group) != PC_OK) abort();
    const int64_t parts = plan.first_part[plan.num_tokens] * pc_part_width(&job) * job.q.heads * 4;
    job.sequences = plan.sequences, job.queries = plan.queries, job.seen = plan.seen, job.first_part = plan.first_part;
    job.parts = malloc(parts + 1);
    memset(job.parts, 0xff, parts + 1);
    for (int32_t i = plan.num_items - 1; i >= 0; i--) {
        const int64_t bytes = kernels->scratch(&job, plan.items + i);
        if (posix_memalign(&scratch, 64, bytes)) abort();
        memset(scratch, 0xff, bytes);
        kernels->attend(&job, plan.items + i, scratch);
        free(scratch);
    }
    const int64_t bytes = (job.v.width + PC_PAD) * 4;
    if (posix_memalign(&scratch, 64, bytes)) abort();
    memset(scratch, 0xff, bytes);
    for (int32_t t = plan.num_tokens - 1; t >= 0; t--)
        if (plan.first_part[t + 1] > plan.first_part[t]) kernels->merge(&job, t, scratch);
    free(scratch);
    free(job.parts);
    free(scaled);
    pc_plan_free(&plan);
    return r;
}

/* -- comparisons --------------------------------------------------------------------------------------- */

/* Error bounds of the library's contract, relative to the largest |v|; rounding to the dtype of `out` comes on top. */
static double bound(const sample *s, const row *e) {
    if (s->features >> F_NATIVE & 1) return fmax(1e-2, 0x1p-8 * (1 + e->score));
    return 1e-6 + 4 * 0x1p-24 * (1 + e->score);
}

/* How many query heads differ from the model; says where the first does, if asked to. */
static int differ(const sample *s, const result *r, int tell) {
    static const double rounding[] = {0x1p-24, 0x1p-11, 0x1p-8};
    const pc_job *job = &s->job;
    const model m = model_of(s);
    int wrong = 0;
    for (int32_t n = 0; n < s->step.num_sequences; n++)
        for (int32_t i = 0; i < s->step.qo_indptr[n + 1] - s->step.qo_indptr[n]; i++)
            for (int32_t head = 0; head < job->q.heads; head++) {
                row e;
                const int64_t token = s->step.qo_indptr[n] + i, at = token * job->q.heads + head;
                const double lse = r->lse[at];
                double worst = 0;
                int bad = 0;
                model_row(&m, n, i, head, &e);
                for (int32_t d = 0; d < job->out.width; d++) {
                    const double x =
                        decode(job->out.dtype, r->out + (at * job->out.width + d) * size_of(job->out.dtype));
                    const double most = bound(s, &e) * e.value + rounding[job->out.dtype] * fabs(e.out[d]) + 0x1p-25;
                    if (!isfinite(e.out[d])) bad |= isfinite(x);
                    else
                        bad |= !(fabs(x - e.out[d]) <= (e.value == 0 ? 0 : most)),
                            worst = fmax(worst, fabs(x - e.out[d]));
                }
                if (isnan(e.lse)) bad |= !isnan(lse);
                else if (isinf(e.lse)) bad |= lse != e.lse;
                else bad |= !(fabs(lse - e.lse) <= 4 * bound(s, &e) + 1e-6 * fabs(e.lse));
                if (bad && !wrong && tell)
                    printf("FAIL %s: sequence %d, query %d, head %d: off by %.3g, lse %.9g for %.9g\n", s->name, n, i,
                           head, worst, lse, e.lse);
                wrong += bad;
            }
    model_free(m);
    return wrong;
}

/* The result of each sequence alone, in one thread. */
static int differs_alone(const pc_kernels *kernels, const sample *s, const result *r) {
    int wrong = 0;
    for (int32_t n = 0; n < s->step.num_sequences; n++) {
        pc_step one = s->step;
        const int32_t from = s->step.qo_indptr[n], indptr[] = {0, s->step.qo_indptr[n + 1] - from};
        int64_t spans[] = {0, 0};
        if (s->step.mask) {
            one.mask += s->step.mask_indptr[n], one.mask_indptr = spans;
            spans[1] = s->step.mask_indptr[n + 1] - s->step.mask_indptr[n];
        }
        one.num_sequences = 1, one.num_tokens = indptr[1], one.qo_indptr = indptr, one.positions += from;
        one.kv_lens += n, one.kv_pads += n, one.kv_starts += n, one.block_tables += n * one.stride;
        result alone = run(kernels, s, &one, from, 1);
        wrong += !same(s, r, &alone, from, indptr[1]);
        free_result(alone);
    }
    return wrong;
}

/* A block that some query sees must be one of the pool. */
static int accepts_foreign_blocks(const sample *s) {
    const int32_t n = s->step.num_sequences - 1, key = s->step.kv_lens[n] - 1;
    int32_t *entry = (int32_t *)s->step.block_tables + n * s->step.stride + key / s->step.block_size;
    const int32_t kept = *entry, wrongs[] = {-1, 0, s->step.num_blocks + 1, INT32_MAX};
    const int is_seen = s->step.qo_indptr[n + 1] > s->step.qo_indptr[n] && key >= s->step.kv_pads[n];
    int accepted = 0;
    for (int i = 0; is_seen && i < 4; i++) {
        pc_plan plan;
        *entry = wrongs[i];
        accepted += pc_plan_make(&plan, &s->step, s->job.kv_heads, s->job.group) != PC_INVALID;
        pc_plan_free(&plan);
        *entry = kept;
    }
    return accepted;
}

static uint64_t digest = 0xcbf29ce484222325u; /* of all results, to compare builds of one table */

static void digest_bits(const sample *s, const result *r) {
    for (int64_t i = 0; i < s->step.num_tokens * out_bytes(&s->job); i++)
        digest = (digest ^ (uint8_t)r->out[i]) * 0x100000001b3u;
}

static int check_case(const pc_kernels *kernels, const sample *s) {
    result r = run(kernels, s, &s->step, 0, 1), other;
    int wrong = sample_check_stored(s);
    if (wrong) printf("FAIL %s: %d bytes or numbers of the pool\n", s->name, wrong);
    wrong += differ(s, &r, 1);
    for (int32_t threads = 2; threads <= 3; threads++) {
        other = run(kernels, s, &s->step, 0, threads);
        if (!same(s, &r, &other, 0, s->step.num_tokens))
            wrong++, printf("FAIL %s: other bits in %d threads\n", s->name, threads);
        free_result(other);
    }
    other = run_backwards(kernels, s);
    if (!same(s, &r, &other, 0, s->step.num_tokens)) wrong++, printf("FAIL %s: other bits backwards\n", s->name);
    free_result(other);
    if (!s->step.num_shared && differs_alone(kernels, s, &r)) wrong++, printf("FAIL %s: other bits alone\n", s->name);
    if (accepts_foreign_blocks(s)) wrong++, printf("FAIL %s: a plan over blocks that are not in the pool\n", s->name);
    digest_bits(s, &r);
    free_result(r);
    return wrong > 0;
}

/* -- that the comparison can fail: with each attribute told wrongly to the model, some case must differ ---- */

static void mistell(sample *s, int feature) {
    switch (feature) {
    case F_WINDOW: s->step.window++; break;
    case F_SINKS: s->step.sink_tokens--; break;
    case F_LOGITS: s->attributes.sink_logits = NULL; break;
    case F_CAP: s->attributes.cap *= 1.2; break;
    case F_SLOPES: s->attributes.slopes = NULL; break;
    case F_TREE: s->step.mask = NULL; break;
    default: s->attributes.scale *= 1.001; break;
    }
}

static int check_control(const pc_kernels *kernels, int feature) {
    for (int64_t number = 0, tried = 0; tried < 20; number++) {
        sample s;
        int found = 0;
        sample_make(&s, number, kernels);
        if (s.features >> feature & 1 && !(s.features >> F_HIDDEN_NAN & 1) && s.step.num_tokens < 40) {
            result r = run(kernels, &s, &s.step, 0, 1);
            tried++;
            mistell(&s, feature);
            found = differ(&s, &r, 0) > 0;
            free_result(r);
        }
        sample_free(&s);
        if (found) return 0;
    }
    printf("FAIL the comparison does not notice a wrong %s\n", feature_names[feature]);
    return 1;
}

int main(int argc, char **argv) {
    const pc_kernels *kernels = NULL;
    const int64_t every = argc > 2 ? atoll(argv[2]) : 1, only = argc > 3 ? atoll(argv[3]) : -1;
    int failed = 0, run_cases = 0, seen[FEATURES] = {0};
    for (int i = 0; argc > 1 && pc_kernels_at(i); i++)
        if (!strcmp(pc_kernels_at(i)->name, argv[1])) kernels = pc_kernels_at(i);
        else if (!strcmp(argv[1], "--supported") && pc_cpu_supports(pc_kernels_at(i)->name))
            puts(pc_kernels_at(i)->name);
    if (!kernels) return argc > 1 && !strcmp(argv[1], "--supported") ? 0 : (fprintf(stderr, "no such table\n"), 2);

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (only < 0) failed += check_numbers(kernels) > 0;
    for (int64_t number = only < 0 ? 0 : only; number < (only < 0 ? CASES : only + 1) && failed < MOST_SHOWN;
         number += every) {
        sample s;
        sample_make(&s, number, kernels);
        failed += check_case(kernels, &s);
        for (int f = 0; f < FEATURES; f++) seen[f] += s.features >> f & 1;
        run_cases++;
        sample_free(&s);
    }
    for (int f = 0; f < FEATURES && every == 1 && only < 0; f++) {
        if (f <= F_TREE) failed += check_control(kernels, f);
        if (seen[f] < 20 && !(f == F_NATIVE && !kernels->has_native))
            failed++, printf("FAIL only %d cases of %s\n", seen[f], feature_names[f]);
    }
    printf("%s: %d cases, %d failed, digest %016llx\n", argv[1], run_cases, failed, (unsigned long long)digest);
    return failed > 0;
}
