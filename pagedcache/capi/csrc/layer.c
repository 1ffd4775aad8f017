#include "layer.h"

#include "error.h"

enum { MOST_BLOCK_SIZE = 1024 };

_Static_assert((int)PC_F32 == PAGEDCACHE_FLOAT32 && (int)PC_F16 == PAGEDCACHE_FLOAT16 &&
                   (int)PC_BF16 == PAGEDCACHE_BFLOAT16 && (int)PC_I8 == PAGEDCACHE_INT8 &&
                   (int)PC_E4M3 == PAGEDCACHE_FLOAT8_E4M3,
               "the header's numbers are the kernels'");

int pc_check_number(const char *what, int32_t dtype) {
    if (PAGEDCACHE_FLOAT32 <= dtype && dtype <= PAGEDCACHE_BFLOAT16) return PAGEDCACHE_OK;
    return pc_fail(PAGEDCACHE_INVALID, "%s is %d; it must be PAGEDCACHE_FLOAT32, _FLOAT16 or _BFLOAT16 (0 to 2)", what,
                   dtype);
}

int pc_check_array(const char *what, const void *array, int32_t size) {
    if (!array) return pc_fail(PAGEDCACHE_INVALID, "%s is NULL; give the array", what);
    if ((uintptr_t)array % (uintptr_t)size)
        return pc_fail(PAGEDCACHE_INVALID, "%s is at %p; it must be aligned to %d bytes, as its numbers are", what,
                       array, size);
    return PAGEDCACHE_OK;
}

static int check_range(const char *what, int32_t value, int32_t least, int32_t most) {
    if (least <= value && value <= most) return PAGEDCACHE_OK;
    return pc_fail(PAGEDCACHE_INVALID, "%s is %d; it must be %d to %d", what, value, least, most);
}

int pc_check_shape(const pagedcache_layer *layer) {
    int status;
    int64_t bytes, widest = layer->head_dim > layer->v_head_dim ? layer->head_dim : layer->v_head_dim;
    if ((status = check_range("num_blocks", layer->num_blocks, 1, INT32_MAX - 1)) ||
        (status = check_range("block_size", layer->block_size, 1, MOST_BLOCK_SIZE)) ||
        (status = check_range("kv_heads", layer->kv_heads, 1, INT32_MAX)) ||
        (status = check_range("head_dim", layer->head_dim, 1, INT32_MAX)) ||
        (status = check_range("v_head_dim", layer->v_head_dim, 0, INT32_MAX)) ||
        (status = check_range("dtype", layer->dtype, PAGEDCACHE_FLOAT32, PAGEDCACHE_FLOAT8_E4M3)) ||
        (status = check_range("layout", layer->layout, PAGEDCACHE_NHD, PAGEDCACHE_HND)))
        return status;
    if (widest * layer->kv_heads > INT32_MAX / 4 ||
        __builtin_mul_overflow(widest * layer->kv_heads * 4 * layer->block_size, layer->num_blocks + INT64_C(1),
                               &bytes))
        return pc_fail(PAGEDCACHE_INVALID, "%d heads of %d numbers are too many: a token's must be less than 2 GiB",
                       layer->kv_heads, (int)widest);
    return PAGEDCACHE_OK;
}

int pc_check_layer(const pagedcache_layer *layer) {
    int status;
    if (!layer) return pc_fail(PAGEDCACHE_INVALID, "layer is NULL; give the layer");
    if ((status = pc_check_shape(layer)) || (status = pc_check_array("layer.k", layer->k, pc_size_of(layer->dtype))) ||
        (status = pc_check_array("layer.v", layer->v, pc_size_of(layer->dtype))))
        return status;
    if (!pc_has_scales(layer->dtype)) {
        if (!layer->k_scales && !layer->v_scales) return PAGEDCACHE_OK;
        return pc_fail(PAGEDCACHE_INVALID, "the layer has scales; numbers of dtype %d have none: NULL", layer->dtype);
    }
    if ((status = pc_check_array("layer.k_scales", layer->k_scales, sizeof(float)))) return status;
    return pc_check_array("layer.v_scales", layer->v_scales, sizeof(float));
}

int64_t pc_scale_bytes(const pagedcache_layer *layer) {
    return pc_has_scales(layer->dtype) ? INT64_C(4) * layer->block_size * layer->kv_heads : 0;
}

int64_t pc_block_bytes(const pagedcache_layer *layer, int is_v) {
    const int64_t width = is_v ? pc_v_dim(layer) : layer->head_dim;
    return width * pc_size_of(layer->dtype) * layer->kv_heads * layer->block_size;
}

pc_plane pc_plane_of(const pagedcache_layer *layer, int is_v) {
    const int hnd = layer->layout == PAGEDCACHE_HND;
    const int64_t width = is_v ? pc_v_dim(layer) : layer->head_dim, row = width * pc_size_of(layer->dtype);
    const int64_t heads = layer->kv_heads, tokens = layer->block_size;
    pc_plane plane = {.data = is_v ? layer->v : layer->k,
                      .block = row * heads * tokens,
                      .token = hnd ? row : row * heads,
                      .head = hnd ? row * tokens : row,
                      .width = (int32_t)width,
                      .dtype = layer->dtype};
    if (!pc_has_scales(layer->dtype)) return plane;
    plane.scales = is_v ? layer->v_scales : layer->k_scales;
    plane.scale_block = heads * tokens;
    plane.scale_token = hnd ? 1 : heads;
    plane.scale_head = hnd ? tokens : 1;
    return plane;
}
