/* One layer of the open step: write, then attend, by the plan that all layers share. */
#include "cache.h"
#include "calls.h"
#include "error.h"

static int plan_for(pagedcache *cache, const pagedcache_layer *layer, const pagedcache_tensors *tensors,
                    const pagedcache_plan **found) {
    for (int32_t i = 0; i < cache->num_plans; i++) {
        const pc_kept_plan *kept = cache->plans + i;
        if (kept->plan->q_heads == tensors->q_heads && kept->plan->kv_heads == layer->kv_heads &&
            kept->window == tensors->window && kept->sink_tokens == tensors->sink_tokens) {
            *found = kept->plan;
            return PAGEDCACHE_OK;
        }
    }
    pc_kept_plan made = {NULL, tensors->window, tensors->sink_tokens};
    pagedcache_step step = cache->step;
    step.window = tensors->window, step.sink_tokens = tensors->sink_tokens;
    const int status = pc_plan_of(layer, &step, tensors->q_heads, &made.plan);
    if (status) return status;
    pc_kept_plan *place = cache->plans + cache->oldest_plan;
    if (cache->num_plans < PC_KEPT_PLANS) place = cache->plans + cache->num_plans++;
    else {
        pc_plan_drop(place->plan);
        cache->oldest_plan = (cache->oldest_plan + 1) % PC_KEPT_PLANS;
    }
    *place = made;
    *found = made.plan;
    return PAGEDCACHE_OK;
}

static int check(const pagedcache *cache, int32_t layer, const pagedcache_tensors *tensors) {
    if (!cache) return pc_fail(PAGEDCACHE_INVALID, "cache is NULL; open one");
    if (!tensors) return pc_fail(PAGEDCACHE_INVALID, "tensors is NULL; give q, k, v and out");
    if (!pc_api_step(cache)) return PAGEDCACHE_NO_STEP;
    if (!pc_api_layer(cache, layer)) return PAGEDCACHE_INVALID;
    if (!tensors->k != !tensors->v)
        return pc_fail(PAGEDCACHE_INVALID, "one of k and v is NULL; give both, or neither to attend only");
    return PAGEDCACHE_OK;
}

int pc_api_attend_step(pagedcache *cache, int32_t layer, const pagedcache_tensors *tensors,
                       const pagedcache_options *given) {
    int status = check(cache, layer, tensors);
    if (status) return status;
    const pagedcache_layer *place = cache->layers + layer;
    const pagedcache_tensors *t = tensors;
    const pagedcache_plan *plan;
    pagedcache_options options = {0};
    pc_attend_call attend;
    pc_write_call write;
    if (given) options = *given;
    if (!options.threads) options.threads = cache->config.threads;
    if ((status = plan_for(cache, place, t, &plan)) ||
        (t->k && (status = pc_write_ready(&write, place, t->k, t->v, t->kv_dtype, cache->slots, cache->step.num_tokens,
                                          options.threads))) ||
        (status = pc_attend_ready(&attend, place, plan, t->q, t->q_dtype, t->out, t->out_dtype, t->lse, &options)))
        return status;
    if (t->k) pc_write_run(&write);
    return pc_attend_run(&attend);
}
