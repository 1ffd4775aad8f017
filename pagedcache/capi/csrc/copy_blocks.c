#include <stdlib.h>

#include "calls.h"
#include "error.h"
#include "layer.h"
#include "store.h"

void pc_copy_layers(const pagedcache_layer *layers, int32_t num_layers, const int64_t *from, const int64_t *to,
                    int64_t n, int32_t threads) {
    for (int32_t l = 0; l < num_layers; l++) {
        const pagedcache_layer *layer = layers + l;
        const int64_t k = pc_block_bytes(layer, 0), v = pc_block_bytes(layer, 1), scales = pc_scale_bytes(layer);
        pc_copy(layer->k, k, from, layer->k, k, to, k, n, threads);
        pc_copy(layer->v, v, from, layer->v, v, to, v, n, threads);
        if (!scales) continue;
        pc_copy((char *)layer->k_scales, scales, from, (char *)layer->k_scales, scales, to, scales, n, threads);
        pc_copy((char *)layer->v_scales, scales, from, (char *)layer->v_scales, scales, to, scales, n, threads);
    }
}
