/* One call of write or attend: checked first and made ready for the kernels, then run, which cannot be refused. */
#pragma once
#include "attend.h"
#include "pagedcache.h"
#include "plan_checked.h"

enum { PC_ON_STACK = 128 }; /* query heads whose slopes and sink logits need no memory */

typedef struct pc_write_call {
    const pc_kernels *kernels;
    pc_plane k_plane, v_plane;
    pc_rows k, v;
    const int64_t *slots;
    int64_t n;
    int32_t block_size, threads;
} pc_write_call;

/* Slots are the caller's to check; pc_check_slots does. */
int pc_write_ready(pc_write_call *call, const pagedcache_layer *layer, const void *k, const void *v, int32_t dtype,
                   const int64_t *slots, int64_t n, int32_t threads);
int pc_check_slots(const pagedcache_layer *layer, const int64_t *slots, int64_t n);
void pc_write_run(const pc_write_call *call);

typedef struct pc_attend_call {
    const pc_kernels *kernels;
    pc_job job;
    const pc_plan *plan;
    int32_t threads;
    float *more; /* memory for the per-head numbers of more heads than that */
    float per_head[2 * PC_ON_STACK];
} pc_attend_call;

/* After PAGEDCACHE_OK, pc_attend_run or pc_attend_drop must follow. */
int pc_attend_ready(pc_attend_call *call, const pagedcache_layer *layer, const pagedcache_plan *plan, const void *q,
                    int32_t q_dtype, void *out, int32_t out_dtype, float *lse, const pagedcache_options *options);
int pc_attend_run(pc_attend_call *call);
void pc_attend_drop(pc_attend_call *call);

/* The layers and ids were checked. */
void pc_copy_layers(const pagedcache_layer *layers, int32_t num_layers, const int64_t *from, const int64_t *to,
                    int64_t n, int32_t threads);
