#include "calls.h"

#include "error.h"
#include "layer.h"
#include "settings.h"
#include "store.h"

int pc_check_slots(const pagedcache_layer *layer, const int64_t *slots, int64_t n) {
    const int64_t low = layer->block_size, high = (layer->num_blocks + INT64_C(1)) * layer->block_size;
    int wrong = 0;
    for (int64_t i = 0; i < n; i++) wrong |= slots[i] < low || slots[i] >= high;
    for (int64_t i = 0; wrong && i < n; i++)
        if (slots[i] < low || slots[i] >= high)
            return pc_fail(PAGEDCACHE_INVALID, "slots[%lld] is %lld; the slots of blocks 1 to %d are %lld to %lld",
                           (long long)i, (long long)slots[i], layer->num_blocks, (long long)low, (long long)high - 1);
    return PAGEDCACHE_OK;
}

static int check_rows(const pc_write_call *call, const pc_rows *rows, const char *name) {
    int status = pc_check_array(name, rows->data, pc_size_of(rows->dtype));
    if (status || !pc_has_scales(call->k_plane.dtype)) return status;
    if (rows->width > PC_WIDEST && rows->dtype != PAGEDCACHE_FLOAT32)
        return pc_fail(PAGEDCACHE_INVALID,
                       "%s has heads of %d numbers; with scales those of more than %d come as float32", name,
                       rows->width, PC_WIDEST);
    if (!call->kernels->finite(rows->dtype, rows->data, call->n * rows->heads * rows->width))
        return pc_fail(PAGEDCACHE_INVALID,
                       "%s holds NaN or an infinity, which no scale fits; the layer's numbers have "
                       "scales",
                       name);
    return PAGEDCACHE_OK;
}

int pc_write_ready(pc_write_call *call, const pagedcache_layer *layer, const void *k, const void *v, int32_t dtype,
                   const int64_t *slots, int64_t n, int32_t threads) {
    int status;
    if ((status = pc_active(&call->kernels)) || (status = pc_check_layer(layer)) ||
        (status = pc_check_number("dtype", dtype)) || (status = pc_threads(threads, &call->threads)))
        return status;
    call->k_plane = pc_plane_of(layer, 0);
    call->v_plane = pc_plane_of(layer, 1);
    call->k = (pc_rows){(char *)k, layer->kv_heads, layer->head_dim, dtype};
    call->v = (pc_rows){(char *)v, layer->kv_heads, pc_v_dim(layer), dtype};
    call->slots = slots, call->n = n, call->block_size = layer->block_size;
    if (n < 0) return pc_fail(PAGEDCACHE_INVALID, "n is %lld; it must be the number of tokens", (long long)n);
    if (!n) return PAGEDCACHE_OK;
    if ((status = pc_check_array("slots", slots, 8)) || (status = check_rows(call, &call->k, "k"))) return status;
    return check_rows(call, &call->v, "v");
}

void pc_write_run(const pc_write_call *call) {
    pc_store(call->kernels, &call->k_plane, &call->k, call->block_size, call->slots, call->n, call->threads);
    pc_store(call->kernels, &call->v_plane, &call->v, call->block_size, call->slots, call->n, call->threads);
}
