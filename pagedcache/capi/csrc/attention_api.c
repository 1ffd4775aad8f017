/* The functions of the table that work on the caller's memory. */
#include "attention_api.h"

#include <stdlib.h>

#include "calls.h"
#include "error.h"
#include "layer.h"
#include "settings.h"

const char *pc_api_isa(void) {
    const pc_kernels *kernels;
    return pc_active(&kernels) == PAGEDCACHE_OK ? kernels->name : NULL;
}

int pc_api_write(const pagedcache_layer *layer, const void *k, const void *v, int32_t dtype, const int64_t *slots,
                 int64_t n, int32_t threads) {
    pc_write_call call;
    int status = pc_write_ready(&call, layer, k, v, dtype, slots, n, threads);
    if (status || !n || (status = pc_check_slots(layer, slots, n))) return status;
    pc_write_run(&call);
    return PAGEDCACHE_OK;
}

int pc_api_attend(const pagedcache_layer *layer, const pagedcache_plan *plan, const void *q, int32_t q_dtype, void *out,
                  int32_t out_dtype, float *lse, const pagedcache_options *options) {
    pc_attend_call call;
    const int status = pc_attend_ready(&call, layer, plan, q, q_dtype, out, out_dtype, lse, options);
    return status ? status : pc_attend_run(&call);
}

static int check_pairs(const pagedcache_layer *layer, const int32_t *pairs, int64_t n, uint8_t *is_target) {
    for (int64_t i = 0; i < n; i++) {
        const int32_t from = pairs[2 * i], to = pairs[2 * i + 1];
        if (from < 1 || from > layer->num_blocks || to < 1 || to > layer->num_blocks)
            return pc_fail(PAGEDCACHE_INVALID, "pairs[%lld] is %d to %d; the layers have blocks 1 to %d", (long long)i,
                           from, to, layer->num_blocks);
        if (is_target[to]++)
            return pc_fail(PAGEDCACHE_INVALID, "pairs[%lld] copies to block %d, as one before does: name a target once",
                           (long long)i, to);
    }
    for (int64_t i = 0; i < n; i++)
        if (is_target[pairs[2 * i]])
            return pc_fail(PAGEDCACHE_INVALID, "pairs[%lld] copies from block %d, which is a target: copy in two calls",
                           (long long)i, pairs[2 * i]);
    return PAGEDCACHE_OK;
}

static int check_layers(const pagedcache_layer *layers, int32_t num_layers) {
    int status;
    if (num_layers < 1 || !layers)
        return pc_fail(PAGEDCACHE_INVALID, "there are %d layers at %p; give one or more", num_layers,
                       (const void *)layers);
    for (int32_t l = 0; l < num_layers; l++) {
        if ((status = pc_check_layer(layers + l))) return status;
        if (layers[l].num_blocks != layers[0].num_blocks)
            return pc_fail(PAGEDCACHE_INVALID,
                           "layer %d has %d blocks and layer 0 %d; copy layers of one pool together", l,
                           layers[l].num_blocks, layers[0].num_blocks);
    }
    return PAGEDCACHE_OK;
}

int pc_api_copy_blocks(const pagedcache_layer *layers, int32_t num_layers, const int32_t *pairs, int64_t n,
                       int32_t threads) {
    int status;
    if ((status = check_layers(layers, num_layers)) || (status = pc_threads(threads, &threads))) return status;
    if (n < 0) return pc_fail(PAGEDCACHE_INVALID, "n is %lld; it must be the number of pairs", (long long)n);
    if (!n || (status = pc_check_array("pairs", pairs, 4))) return status;
    uint8_t *is_target = calloc(layers->num_blocks + (size_t)1, 1);
    int64_t *ids = malloc(2 * sizeof *ids * (size_t)n);
    if (!is_target || !ids) status = pc_fail(PAGEDCACHE_NO_MEMORY, "no memory to copy %lld blocks", (long long)n);
    else status = check_pairs(layers, pairs, n, is_target);
    if (!status) {
        for (int64_t i = 0; i < n; i++) ids[i] = pairs[2 * i], ids[n + i] = pairs[2 * i + 1];
        pc_copy_layers(layers, num_layers, ids, ids + n, n, threads);
    }
    free(is_target);
    free(ids);
    return status;
}
