/* A layer as callers describe it: checked, and as the kernels want it. */
#pragma once
#include "kernels.h"
#include "pagedcache.h"

static inline int pc_has_scales(int32_t dtype) { return dtype == PAGEDCACHE_INT8 || dtype == PAGEDCACHE_FLOAT8_E4M3; }
static inline int32_t pc_size_of(int32_t dtype) {
    return dtype == PAGEDCACHE_FLOAT32 ? 4 : pc_has_scales(dtype) ? 1 : 2;
}
static inline int32_t pc_v_dim(const pagedcache_layer *layer) {
    return layer->v_head_dim ? layer->v_head_dim : layer->head_dim;
}

/* Checks all but the pointers. */
int pc_check_shape(const pagedcache_layer *layer);
int pc_check_layer(const pagedcache_layer *layer);

/* Of K, V: bytes of a block, and of its scales (0: there are none). The layer was checked. */
int64_t pc_block_bytes(const pagedcache_layer *layer, int is_v);
int64_t pc_scale_bytes(const pagedcache_layer *layer);

pc_plane pc_plane_of(const pagedcache_layer *layer, int is_v);

/* Whether this is what q, k, v and out may come as; `what` names the argument. */
int pc_check_number(const char *what, int32_t dtype);

/* Whether an array, of which there is at least one number, may be there; `what` names the argument. */
int pc_check_array(const char *what, const void *array, int32_t size);
