#include <math.h>
#include <stdlib.h>

#include "calls.h"
#include "error.h"
#include "layer.h"
#include "settings.h"

#define LOG2E 1.4426950408889634
static const double MOST = 1e28; /* of factors and slopes: their products with positions, too, are finite in float32 */

/* -- how scores are made ------------------------------------------------------------------------------------- */

static int check_heads(const char *name, const float *values, int32_t q_heads, int may_be_minus_infinity) {
    for (int32_t h = 0; h < q_heads; h++)
        if (!(fabsf(values[h]) <= (float)MOST) && !(may_be_minus_infinity && values[h] == -INFINITY))
            return pc_fail(PAGEDCACHE_INVALID, "%s[%d] is %g; it must be at most %g and not less than -%g%s", name, h,
                           values[h], MOST, MOST, may_be_minus_infinity ? ", or -infinity" : "");
    return PAGEDCACHE_OK;
}

/* Per head numbers times log2(e), for exponentials to the base 2. */
static const float *scaled(const float *values, float *room, int32_t q_heads) {
    if (!values) return NULL;
    for (int32_t h = 0; h < q_heads; h++) room[h] = values[h] * (float)LOG2E;
    return room;
}

static int make_rule(pc_attend_call *call, const pagedcache_layer *layer, const pagedcache_options *given) {
    static const pagedcache_options none;
    const pagedcache_options *options = given ? given : &none;
    const double scale = options->scale != 0 ? options->scale : pow(layer->head_dim, -0.5), cap = options->softcap;
    const int32_t q_heads = call->job.q.heads;
    pc_rule *rule = &call->job.rule;
    float *room = call->per_head;
    int status;
    if (!(fabs(scale) <= MOST))
        return pc_fail(PAGEDCACHE_INVALID, "scale is %g; it must be at most %g and not less than -%g", scale, MOST,
                       MOST);
    if (cap != 0 && !(1 / MOST <= cap && cap <= MOST && fabs(scale) / cap <= MOST))
        return pc_fail(PAGEDCACHE_INVALID,
                       "softcap is %g; it must be %g to %g and scale / softcap at most as much, or 0 "
                       "for no cap",
                       cap, 1 / MOST, MOST);
    if ((options->alibi_slopes && ((status = pc_check_array("alibi_slopes", options->alibi_slopes, 4)) ||
                                   (status = check_heads("alibi_slopes", options->alibi_slopes, q_heads, 0)))) ||
        (options->sink_logits && ((status = pc_check_array("sink_logits", options->sink_logits, 4)) ||
                                  (status = check_heads("sink_logits", options->sink_logits, q_heads, 1)))))
        return status;
    if (q_heads > PC_ON_STACK && (options->alibi_slopes || options->sink_logits)) {
        call->more = room = malloc(2 * sizeof(float) * (size_t)q_heads);
        if (!room) return pc_fail(PAGEDCACHE_NO_MEMORY, "no memory for the numbers of %d query heads", q_heads);
    }
    rule->scale = (float)(cap != 0 ? scale / cap : scale * LOG2E);
    rule->cap = (float)(cap * LOG2E);
    rule->slopes = scaled(options->alibi_slopes, room, q_heads);
    rule->sink_logits = scaled(options->sink_logits, room + q_heads, q_heads);
    rule->native = layer->dtype == PAGEDCACHE_BFLOAT16 && call->kernels->has_native && !options->exact;
    return PAGEDCACHE_OK;
}

/* -- what is read and written ---------------------------------------------------------------------------------- */

static int check_fits(const pagedcache_plan *plan, const pagedcache_layer *layer) {
    if (!plan) return pc_fail(PAGEDCACHE_INVALID, "plan is NULL; make one by plan_make");
    if (plan->num_blocks == layer->num_blocks && plan->block_size == layer->block_size &&
        plan->kv_heads == layer->kv_heads)
        return PAGEDCACHE_OK;
    return pc_fail(PAGEDCACHE_INVALID,
                   "the plan is for %d blocks of %d tokens and %d KV heads, the layer has %d of %d "
                   "and %d: make a plan for each shape of layers",
                   plan->num_blocks, plan->block_size, plan->kv_heads, layer->num_blocks, layer->block_size,
                   layer->kv_heads);
}

static int meet(const void *one, int64_t bytes, const void *other, int64_t other_bytes) {
    const uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;
    return one && other && a < b + (uintptr_t)other_bytes && b < a + (uintptr_t)bytes;
}

static int check_apart(const pc_job *job, const pagedcache_layer *layer, int64_t tokens) {
    const int64_t q = tokens * job->q.heads * job->q.width * pc_size_of(job->q.dtype);
    const int64_t out = tokens * job->out.heads * job->out.width * pc_size_of(job->out.dtype);
    const int64_t lse = tokens * job->q.heads * 4, blocks = layer->num_blocks + INT64_C(1);
    const int64_t k = pc_block_bytes(layer, 0) * blocks, v = pc_block_bytes(layer, 1) * blocks;
    if (meet(job->out.data, out, job->q.data, q) || meet(job->lse, lse, job->q.data, q) ||
        meet(job->lse, lse, job->out.data, out))
        return pc_fail(PAGEDCACHE_INVALID, "out, lse and q overlap; each must have memory of its own");
    if (meet(job->out.data, out, layer->k, k) || meet(job->out.data, out, layer->v, v) ||
        meet(job->lse, lse, layer->k, k) || meet(job->lse, lse, layer->v, v))
        return pc_fail(PAGEDCACHE_INVALID, "out or lse overlaps the layer's K or V; give them memory of their own");
    return PAGEDCACHE_OK;
}

int pc_attend_ready(pc_attend_call *call, const pagedcache_layer *layer, const pagedcache_plan *plan, const void *q,
                    int32_t q_dtype, void *out, int32_t out_dtype, float *lse, const pagedcache_options *options) {
    int status;
    pc_job *job = &call->job;
    call->more = NULL;
    if ((status = pc_active(&call->kernels)) || (status = pc_check_layer(layer)) ||
        (status = check_fits(plan, layer)) || (status = pc_check_number("q_dtype", q_dtype)) ||
        (status = pc_check_number("out_dtype", out_dtype)) ||
        (status = pc_threads(options ? options->threads : 0, &call->threads)))
        return status;
    call->plan = &plan->c;
    *job = (pc_job){.k = pc_plane_of(layer, 0),
                    .v = pc_plane_of(layer, 1),
                    .q = {(char *)q, plan->q_heads, layer->head_dim, q_dtype},
                    .out = {out, plan->q_heads, pc_v_dim(layer), out_dtype},
                    .lse = lse,
                    .block_size = layer->block_size,
                    .kv_heads = layer->kv_heads,
                    .group = plan->q_heads / layer->kv_heads};
    if (plan->c.num_tokens &&
        ((status = pc_check_array("q", q, pc_size_of(q_dtype))) ||
         (status = pc_check_array("out", out, pc_size_of(out_dtype))) ||
         (lse && (status = pc_check_array("lse", lse, 4))) || (status = check_apart(job, layer, plan->c.num_tokens))))
        return status;
    return make_rule(call, layer, options);
}

int pc_attend_run(pc_attend_call *call) {
    const int status = pc_attend(call->kernels, &call->job, call->plan, call->threads);
    pc_attend_drop(call);
    if (status != PC_NO_MEMORY) return status;
    return pc_fail(status, "no memory for the partial results of %d queries", call->plan->num_tokens);
}

void pc_attend_drop(pc_attend_call *call) { free(call->more); }
