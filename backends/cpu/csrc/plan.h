/* What a step asks for, cut into pieces of work.
 *
 * The cut of a sequence depends on its own queries and keys alone, and so do the bits of its result:
 * not on the other sequences, its place among them, or the number of threads. A long sequence is cut
 * into spans of keys whose results are merged; so it is in a batch too, where that would not be needed. */
#pragma once
#include <stdint.h>

#include "kernels.h"

typedef struct pc_step { /* arrays of StepLike, and the attributes of attend that say what is seen */
    int32_t num_sequences, num_tokens, block_size, num_blocks;
    int32_t width;  /* entries of a row of block_tables */
    int64_t stride; /* from row to row */
    const int32_t *block_tables, *qo_indptr, *kv_lens, *kv_pads, *kv_starts;
    const int64_t *positions;   /* [tokens] */
    const uint8_t *mask;        /* bits, or NULL */
    const int64_t *mask_indptr; /* [n + 1], or NULL */
    const int32_t *shared;      /* [num_shared, 3] */
    int32_t num_shared;
    int64_t window; /* tokens; INT32_MAX and more: no window */
    int64_t sink_tokens;
} pc_step;

typedef struct pc_plan {
    pc_sequence *sequences; /* [n] */
    pc_query *queries;      /* [tokens] */
    uint8_t *seen;          /* of queries of trees: one byte per new token */
    pc_item *items;
    float *costs;        /* [items] relative to each other */
    int32_t *first_part; /* [tokens + 1] */
    int32_t num_items, num_tokens;
    double bytes, products; /* of K/V that are read, and multiplications per number of a head, of all */
} pc_plan;

enum { PC_OK, PC_INVALID, PC_NO_MEMORY };

/* PC_INVALID: the arrays contradict each other or the pool; which and how, pagedcache.backends.host.batch says.
 * Block tables stay borrowed. What was made is freed by pc_plan_free, also after an error. */
int pc_plan_make(pc_plan *plan, const pc_step *step, int32_t kv_heads, int32_t group);
void pc_plan_free(pc_plan *plan);
