#define _GNU_SOURCE
#include "attend.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "threads.h"

#ifdef _WIN32 /* has no aligned_alloc, and a free of its own for what is aligned */
#include <malloc.h>
#define aligned_alloc(alignment, size) _aligned_malloc((size), (alignment))
#define free_aligned _aligned_free
#else
#define free_aligned free
#endif

/* Where calls follow each other, a team that is woken up in one is awake in the next: batch 1, 512 tokens of 3 heads
 * of 64, 60 us instead of 110. Where a model computes in between it is asleep again, and 110 would become 120. */
enum {
    SUCCESSION_NS = 20000,
    IN_SUCCESSION = 25 /* us of work */
};
static _Atomic int64_t ended; /* when the last call did */

typedef struct call {
    const pc_kernels *kernels;
    const pc_job *job;
    const pc_plan *plan;
    char *scratch;
    int64_t stride; /* bytes of a thread's scratch */
} call;

static void attend_item(void *context, int32_t index, int32_t thread) {
    const call *c = (const call *)context;
    c->kernels->attend(c->job, c->plan->items + index, c->scratch + thread * c->stride);
}

enum { TOKENS_PER_TASK = 4 };

static void merge_tokens(void *context, int32_t index, int32_t thread) {
    const call *c = (const call *)context;
    const int32_t *first = c->job->first_part;
    for (int32_t t = index * TOKENS_PER_TASK; t < (index + 1) * TOKENS_PER_TASK && t < c->plan->num_tokens; t++)
        if (first[t + 1] > first[t]) c->kernels->merge(c->job, t, c->scratch + thread * c->stride);
}

int32_t pc_worth(int32_t threads, double bytes, double operations, double asleep) {
    const double alone = bytes / 25e3 + operations / 60e3; /* microseconds, at 25 GB/s and 60 GFLOP/s */
    return alone < (pc_team_is_awake() ? 8 : asleep) ? 1 : threads;
}

int pc_attend(const pc_kernels *kernels, pc_job *job, const pc_plan *plan, int32_t threads) {
    const int32_t tokens = plan->num_tokens, parts = plan->first_part[tokens];
    const int64_t numbers = job->k.width + job->v.width, part = pc_part_width(job) * job->q.heads;
    const int64_t number = job->k.dtype == PC_F32 ? 4 : job->k.dtype <= PC_BF16 ? 2 : 1;
    call c = {.kernels = kernels, .job = job, .plan = plan};

    job->sequences = plan->sequences;
    job->queries = plan->queries;
    job->seen = plan->seen;
    job->first_part = plan->first_part;
    const int follows = pc_now_ns() - atomic_load_explicit(&ended, memory_order_relaxed) < SUCCESSION_NS;
    threads = pc_worth(threads, plan->bytes * numbers * number, plan->products * numbers * 2,
                       follows ? IN_SUCCESSION : PC_WAKING);
    if (threads > PC_MOST_THREADS) threads = PC_MOST_THREADS;
    for (int32_t i = 0; i < plan->num_items; i++) {
        const int64_t bytes = kernels->scratch(job, plan->items + i);
        if (bytes > c.stride) c.stride = bytes;
    }
    if (parts && c.stride < (int64_t)sizeof(float) * (job->v.width + PC_PAD))
        c.stride = sizeof(float) * (job->v.width + PC_PAD);
    c.stride = (c.stride + 127) / 64 * 64; /* one line more, since scratch of neighbours must not share one */
    const int64_t all = c.stride * threads + (int64_t)sizeof(float) * parts * part;
    c.scratch = aligned_alloc(64, (size_t)(all + 63) / 64 * 64);
    if (!c.scratch) return PC_NO_MEMORY;
    job->parts = (float *)(c.scratch + c.stride * threads);

    pc_run(threads, plan->num_items, plan->costs, attend_item, &c);
    if (parts) {
        const double bytes = (double)sizeof(float) * parts * part;
        pc_run(pc_worth(threads, bytes, bytes, PC_WAKING), (tokens + TOKENS_PER_TASK - 1) / TOKENS_PER_TASK, NULL,
               merge_tokens, &c);
    }
    free_aligned(c.scratch);
    atomic_store_explicit(&ended, pc_now_ns(), memory_order_relaxed);
    return PC_OK;
}
