#include "plan_checked.h"

#include <stdlib.h>

#include "error.h"
#include "layer.h"

static const int32_t no_rows[1] = {0};
#define FARTHEST (INT64_C(1) << 61) /* as plan.c has it */

/* -- what is wrong, in words ------------------------------------------------------------------------------ */

static int check_rows(const pagedcache_step *step, int32_t block_size) {
    const int64_t capacity = (int64_t)step->table_width * block_size;
    if (step->qo_indptr[0] != 0 || step->qo_indptr[step->num_sequences] != step->num_tokens)
        return pc_fail(PAGEDCACHE_INVALID, "qo_indptr is %d to %d; it must rise from 0 to num_tokens, %d",
                       step->qo_indptr[0], step->qo_indptr[step->num_sequences], step->num_tokens);
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const int32_t begin = step->qo_indptr[s], end = step->qo_indptr[s + 1];
        if (begin > end || end > step->num_tokens)
            return pc_fail(PAGEDCACHE_INVALID, "qo_indptr[%d] is %d and the next %d; it must rise from 0 to %d", s,
                           begin, end, step->num_tokens);
        if (step->kv_lens[s] < 0 || step->kv_lens[s] > capacity)
            return pc_fail(PAGEDCACHE_INVALID,
                           "kv_lens[%d] is %d; it must be 0 to %lld, table_width %d x block_size %d", s,
                           step->kv_lens[s], (long long)capacity, step->table_width, block_size);
        if (step->kv_pads && step->kv_pads[s] < 0)
            return pc_fail(PAGEDCACHE_INVALID, "kv_pads[%d] is %d; it must not be negative", s, step->kv_pads[s]);
        if (!step->mask) continue;
        const int64_t from = step->mask_indptr[s], bytes = step->mask_indptr[s + 1] - from, count = end - begin;
        if ((s == 0 && from != 0) || (bytes != 0 && bytes != (count * count + 7) / 8))
            return pc_fail(PAGEDCACHE_INVALID,
                           "mask_indptr gives sequence %d %lld bytes from %lld; it begins at 0, and "
                           "%lld new tokens need %lld bytes, or none for a causal mask",
                           s, (long long)bytes, (long long)from, (long long)count, (long long)(count * count + 7) / 8);
    }
    return PAGEDCACHE_OK;
}

static int check_step(const pagedcache_step *step, const pagedcache_layer *layer) {
    int status;
    if (step->num_sequences < 0 || step->num_tokens < 0 || step->table_width < 0)
        return pc_fail(PAGEDCACHE_INVALID,
                       "the step has %d sequences, %d tokens and table_width %d; none may be negative",
                       step->num_sequences, step->num_tokens, step->table_width);
    if (step->table_stride && step->table_stride < step->table_width)
        return pc_fail(PAGEDCACHE_INVALID, "table_stride is %lld; it must be table_width, %d, or more, or 0 for that",
                       (long long)step->table_stride, step->table_width);
    if (step->window < 0 || step->sink_tokens < 0)
        return pc_fail(PAGEDCACHE_INVALID, "window is %lld and sink_tokens %lld; they must be 1 or more, or 0 for none",
                       (long long)step->window, (long long)step->sink_tokens);
    if (!step->mask != !step->mask_indptr)
        return pc_fail(PAGEDCACHE_INVALID, "give both mask and mask_indptr, or neither");
    if (!step->num_sequences) {
        if (!step->num_tokens) return PAGEDCACHE_OK;
        return pc_fail(PAGEDCACHE_INVALID, "the step has %d tokens of no sequences", step->num_tokens);
    }
    if ((status = pc_check_array("qo_indptr", step->qo_indptr, 4)) ||
        (status = pc_check_array("kv_lens", step->kv_lens, 4)) ||
        (step->table_width && (status = pc_check_array("block_tables", step->block_tables, 4))) ||
        (step->kv_pads && (status = pc_check_array("kv_pads", step->kv_pads, 4))) ||
        (step->kv_starts && (status = pc_check_array("kv_starts", step->kv_starts, 4))) ||
        (step->positions && (status = pc_check_array("positions", step->positions, 8))) ||
        (step->mask && (status = pc_check_array("mask_indptr", step->mask_indptr, 8))))
        return status;
    return check_rows(step, layer->block_size);
}

/* After pc_plan_make has refused what check_step let pass. */
static int explain(const pc_step *step) {
    for (int32_t t = 0; t < step->num_tokens; t++)
        if (step->positions[t] < -FARTHEST || step->positions[t] > FARTHEST)
            return pc_fail(PAGEDCACHE_INVALID, "positions[%d] is %lld; it must be at most 2^61 and not less than -2^61",
                           t, (long long)step->positions[t]);
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const int64_t sinks = step->kv_pads[s] + (step->sink_tokens < INT32_MAX ? step->sink_tokens : INT32_MAX);
        for (int64_t entry = 0; entry * step->block_size < step->kv_lens[s]; entry++) {
            const int32_t block = step->block_tables[s * step->stride + entry];
            const int64_t begin = entry * step->block_size, end = begin + step->block_size;
            const int held = end > step->kv_pads[s] && (end > step->kv_starts[s] || begin < sinks);
            if (held && (block < 1 || block > step->num_blocks))
                return pc_fail(PAGEDCACHE_INVALID,
                               "block_tables[%d, %lld] is %d, in the visible part of the sequence; "
                               "the layer has blocks 1 to %d",
                               s, (long long)entry, block, step->num_blocks);
        }
    }
    return pc_fail(PAGEDCACHE_INVALID, "the arrays of the step contradict each other");
}

int pc_check_heads(int32_t q_heads, int32_t kv_heads) {
    if (q_heads >= 1 && q_heads % kv_heads == 0) return PAGEDCACHE_OK;
    return pc_fail(PAGEDCACHE_INVALID, "q_heads is %d; it must be a multiple of kv_heads, %d", q_heads, kv_heads);
}

/* -- the plan ------------------------------------------------------------------------------------------------- */

static void derive_positions(int64_t *positions, const pc_step *step) {
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const int32_t from = step->qo_indptr[s], count = step->qo_indptr[s + 1] - from;
        const int64_t first = (int64_t)step->kv_lens[s] - count - step->kv_pads[s];
        for (int32_t i = 0; i < count; i++) positions[from + i] = first + i;
    }
}

static int fill(pagedcache_plan *plan, const pagedcache_layer *layer, const pagedcache_step *step,
                const int32_t *zeros) {
    const int none = step->num_sequences == 0;
    pc_step given = {.num_sequences = step->num_sequences,
                     .num_tokens = step->num_tokens,
                     .block_size = layer->block_size,
                     .num_blocks = layer->num_blocks,
                     .width = step->table_width,
                     .stride = step->table_stride ? step->table_stride : step->table_width,
                     .block_tables = step->block_tables,
                     .qo_indptr = none ? no_rows : step->qo_indptr,
                     .kv_lens = none ? no_rows : step->kv_lens,
                     .kv_pads = step->kv_pads ? step->kv_pads : zeros,
                     .kv_starts = step->kv_starts ? step->kv_starts : zeros,
                     .positions = step->positions,
                     .mask = step->mask,
                     .mask_indptr = step->mask_indptr,
                     .window = step->window && step->window < INT32_MAX ? step->window : INT32_MAX,
                     .sink_tokens = step->sink_tokens};
    if (!given.positions) {
        plan->positions = malloc(sizeof(int64_t) * ((size_t)step->num_tokens + 1));
        if (!plan->positions) return PC_NO_MEMORY;
        derive_positions(plan->positions, &given);
        given.positions = plan->positions;
    }
    const int status = pc_plan_make(&plan->c, &given, layer->kv_heads, plan->q_heads / layer->kv_heads);
    return status == PC_INVALID ? explain(&given) : status;
}

_Static_assert((int)PC_OK == PAGEDCACHE_OK && (int)PC_INVALID == PAGEDCACHE_INVALID &&
                   (int)PC_NO_MEMORY == PAGEDCACHE_NO_MEMORY,
               "the plan's statuses are the header's");

int pc_plan_of(const pagedcache_layer *layer, const pagedcache_step *step, int32_t q_heads, pagedcache_plan **made) {
    int status;
    if (!made) return pc_fail(PAGEDCACHE_INVALID, "plan is NULL; give the place for the plan");
    *made = NULL;
    if ((status = pc_check_layer(layer))) return status;
    if (!step) return pc_fail(PAGEDCACHE_INVALID, "step is NULL; give the step");
    if ((status = pc_check_heads(q_heads, layer->kv_heads)) || (status = check_step(step, layer))) return status;
    pagedcache_plan *plan = calloc(1, sizeof *plan);
    int32_t *zeros = calloc((size_t)step->num_sequences + 1, sizeof *zeros);
    status = PAGEDCACHE_NO_MEMORY;
    if (plan && zeros) {
        plan->num_blocks = layer->num_blocks, plan->block_size = layer->block_size;
        plan->kv_heads = layer->kv_heads, plan->q_heads = q_heads;
        status = fill(plan, layer, step, zeros);
    }
    free(zeros);
    if (status == PAGEDCACHE_OK) *made = plan;
    else pc_plan_drop(plan);
    if (status == PAGEDCACHE_NO_MEMORY)
        return pc_fail(status, "no memory for the plan of a step of %d sequences and %d tokens", step->num_sequences,
                       step->num_tokens);
    return status;
}

void pc_plan_drop(pagedcache_plan *plan) {
    if (!plan) return;
    pc_plan_free(&plan->c);
    free(plan->positions);
    free(plan);
}
