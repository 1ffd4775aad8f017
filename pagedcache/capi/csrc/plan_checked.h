/* Plans of steps that anybody made: checked, with what they leave out derived. */
#pragma once
#include <stddef.h>

#include "pagedcache.h"
#include "plan.h"

struct pagedcache_plan {
    pc_plan c;
    int64_t *positions; /* where the caller gave none */
    int32_t num_blocks, block_size, kv_heads, q_heads;
};

int pc_check_heads(int32_t q_heads, int32_t kv_heads);
int pc_plan_of(const pagedcache_layer *layer, const pagedcache_step *step, int32_t q_heads, pagedcache_plan **plan);
void pc_plan_drop(pagedcache_plan *plan);
