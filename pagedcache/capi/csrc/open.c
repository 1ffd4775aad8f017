/* Opening a cache and closing it: its configuration, its own records, and memory for K and V. */
#include <stdlib.h>

#include "cache.h"
#include "error.h"
#include "layer.h"
#include "memory.h"
#include "settings.h"
#include "threads.h"

enum { USUAL_BLOCK_SIZE = 16, USUAL_SEQUENCES = 256, MOST_SEQUENCES = 1 << 24 };
#define MOST_LENGTH 0x7FFFF800 /* tokens: they, and their round-up to whole blocks, fit int32 */

/* -- configuration -------------------------------------------------------------------------------------------- */

static int check_layers(const pagedcache_config *config) {
    for (int32_t l = 0; l < config->num_layers; l++) {
        const pagedcache_layer *layer = config->layers + l;
        const int status = pc_check_layer(layer);
        if (status) return status;
        if (layer->num_blocks != config->num_blocks || layer->block_size != config->block_size)
            return pc_fail(PAGEDCACHE_INVALID,
                           "layers[%d] has %d blocks of %d tokens; the cache %d of %d: they must be "
                           "alike",
                           l, layer->num_blocks, layer->block_size, config->num_blocks, config->block_size);
    }
    return PAGEDCACHE_OK;
}

static pagedcache_layer layer_of(const pagedcache_config *config) {
    return (pagedcache_layer){.num_blocks = config->num_blocks,
                              .block_size = config->block_size,
                              .kv_heads = config->kv_heads,
                              .head_dim = config->head_dim,
                              .v_head_dim = config->v_head_dim ? config->v_head_dim : config->head_dim,
                              .dtype = config->dtype,
                              .layout = config->layout};
}

static int check_counts(const pagedcache_config *config) {
    if (config->num_layers < 0 || config->num_layers > 1 << 16)
        return pc_fail(PAGEDCACHE_INVALID, "num_layers is %d; it must be 0 to %d", config->num_layers, 1 << 16);
    if (config->num_blocks < 1 || config->num_blocks == INT32_MAX)
        return pc_fail(PAGEDCACHE_INVALID, "num_blocks is %d; it must be 1 to %d", config->num_blocks, INT32_MAX - 1);
    if (config->block_size < 1 || config->block_size > 1024)
        return pc_fail(PAGEDCACHE_INVALID, "block_size is %d; it must be 1 to 1024", config->block_size);
    if (config->max_sequences < 1 || config->max_sequences > MOST_SEQUENCES)
        return pc_fail(PAGEDCACHE_INVALID, "max_sequences is %d; it must be 1 to %d", config->max_sequences,
                       MOST_SEQUENCES);
    if (config->max_length < 1 || config->max_length > MOST_LENGTH)
        return pc_fail(PAGEDCACHE_INVALID, "max_length is %d; it must be 1 to %d", config->max_length, MOST_LENGTH);
    if (config->threads < 0)
        return pc_fail(PAGEDCACHE_INVALID, "threads is %d; it must be 1 or more, or 0 for one per processor",
                       config->threads);
    return PAGEDCACHE_OK;
}

/* Checks the configuration, and fills in what is 0. */
static int complete(pagedcache_config *config) {
    int status;
    if (!config->block_size) config->block_size = USUAL_BLOCK_SIZE;
    if (!config->max_sequences) config->max_sequences = USUAL_SEQUENCES;
    if (!config->max_length) {
        const int64_t all = (int64_t)config->num_blocks * config->block_size;
        config->max_length = (int32_t)(all < MOST_LENGTH ? all : MOST_LENGTH);
    }
    if ((status = check_counts(config))) return status;
    if (config->layers) return check_layers(config);
    if (!config->num_layers) return PAGEDCACHE_OK;
    const pagedcache_layer layer = layer_of(config);
    return pc_check_shape(&layer);
}

/* -- memory ---------------------------------------------------------------------------------------------------- */

/* Places the arrays of all layers one behind the other, from `base` on; returns how many bytes they take. */
static int64_t place(pagedcache_layer *layers, const pagedcache_config *config, char *base) {
    const pagedcache_layer one = layer_of(config);
    const int64_t rows = config->num_blocks + INT64_C(1), scales = pc_scale_bytes(&one) * rows;
    const int64_t bytes[4] = {pc_block_bytes(&one, 0) * rows, pc_block_bytes(&one, 1) * rows, scales, scales};
    int64_t at = 0;
    for (int32_t l = 0; l < config->num_layers; l++) {
        char *arrays[4] = {NULL, NULL, NULL, NULL};
        for (int i = 0; i < (scales ? 4 : 2); i++) {
            at = pc_array_begin(at, bytes[i]);
            if (base) {
                arrays[i] = base + at;
                pc_ask_huge_pages(arrays[i], bytes[i]);
            }
            at += bytes[i];
        }
        if (!base) continue;
        layers[l] = one;
        layers[l].k = arrays[0], layers[l].v = arrays[1];
        layers[l].k_scales = (float *)arrays[2], layers[l].v_scales = (float *)arrays[3];
    }
    return at;
}

static int make_layers(pagedcache *cache) {
    const pagedcache_config *config = &cache->config;
    const int32_t n = config->num_layers;
    if (!n) return PAGEDCACHE_OK;
    cache->layers = calloc((size_t)n, sizeof *cache->layers);
    if (!cache->layers) return PAGEDCACHE_NO_MEMORY;
    for (int32_t l = 0; config->layers && l < n; l++) cache->layers[l] = config->layers[l];
    if (config->layers) return PAGEDCACHE_OK;
    const pagedcache_layer one = layer_of(config);
    const double all = ((double)pc_block_bytes(&one, 0) + (double)pc_block_bytes(&one, 1)) * config->num_blocks * n;
    if (all > 0x1p60) return PAGEDCACHE_NO_MEMORY;
    cache->memory_bytes = place(NULL, config, NULL);
    cache->memory = pc_map(cache->memory_bytes);
    if (!cache->memory) return PAGEDCACHE_NO_MEMORY;
    place(cache->layers, config, cache->memory);
    return PAGEDCACHE_OK;
}

static void *room(int64_t count, size_t size, int *status) {
    void *memory = calloc((size_t)count, size);
    if (!memory) *status = PAGEDCACHE_NO_MEMORY;
    return memory;
}

static int make_records(pagedcache *cache) {
    const int64_t n = cache->config.max_sequences;
    const int64_t tokens = (int64_t)cache->config.num_blocks * cache->config.block_size;
    const int64_t most = tokens < INT32_MAX ? tokens : INT32_MAX; /* of a step */
    int status = pc_blocks_make(&cache->blocks, cache->config.num_blocks);
    cache->pitch = pc_blocks_for(cache, cache->config.max_length);
    cache->rows = room(n, sizeof *cache->rows, &status);
    cache->tables = room(n * cache->pitch, sizeof *cache->tables, &status);
    cache->vacant = room(n, sizeof *cache->vacant, &status);
    cache->named = room(n, sizeof *cache->named, &status);
    cache->copiers = room(n, sizeof *cache->copiers, &status);
    cache->step_rows = room(n, sizeof *cache->step_rows, &status);
    cache->step_tables = room(n * cache->pitch, sizeof *cache->step_tables, &status);
    cache->qo_indptr = room(n + 1, sizeof *cache->qo_indptr, &status);
    cache->kv_lens = room(n, sizeof *cache->kv_lens, &status);
    cache->positions = room(most, sizeof *cache->positions, &status);
    cache->slots = room(most, sizeof *cache->slots, &status);
    cache->copies = room(n, sizeof *cache->copies, &status);
    cache->pairs = room(2 * n, sizeof *cache->pairs, &status);
    cache->copy_from = room(n, sizeof *cache->copy_from, &status);
    cache->copy_to = room(n, sizeof *cache->copy_to, &status);
    return status;
}

static void begin(pagedcache *cache) {
    /* A start of its own keeps handles of one cache from naming sequences of another. */
    const uint64_t seed = (uint64_t)pc_now_ns() ^ (uint64_t)(uintptr_t)cache;
    const int32_t first = (int32_t)(seed * UINT64_C(0x9E3779B97F4A7C15) >> 34) | 1;
    cache->num_vacant = cache->config.max_sequences;
    for (int32_t row = 0; row < cache->num_vacant; row++) {
        cache->rows[row].generation = first;
        cache->vacant[row] = cache->num_vacant - 1 - row;
    }
    cache->step = (pagedcache_step){.table_stride = cache->pitch,
                                    .block_tables = cache->step_tables,
                                    .qo_indptr = cache->qo_indptr,
                                    .kv_lens = cache->kv_lens,
                                    .positions = cache->positions,
                                    .slots = cache->slots};
}

int pc_api_open(const pagedcache_config *config, pagedcache **opened) {
    int status;
    pagedcache_config whole;
    const pc_kernels *kernels;
    if (!opened) return pc_fail(PAGEDCACHE_INVALID, "cache is NULL; give the place for the cache");
    *opened = NULL;
    if (!config) return pc_fail(PAGEDCACHE_INVALID, "config is NULL; give the configuration");
    whole = *config;
    if ((status = complete(&whole)) || (status = pc_threads(whole.threads, &whole.threads)) ||
        (whole.num_layers && (status = pc_active(&kernels))))
        return status;
    pagedcache *cache = calloc(1, sizeof *cache);
    status = PAGEDCACHE_NO_MEMORY;
    if (cache) {
        cache->config = whole;
        status = make_layers(cache); /* first: what is too large takes no time then */
        if (!status) status = make_records(cache);
    }
    if (status) {
        pc_api_close(cache);
        return pc_fail(status, "no memory for %d blocks of %d tokens in %d layers, and %d sequences of up to %d tokens",
                       whole.num_blocks, whole.block_size, whole.num_layers, whole.max_sequences, whole.max_length);
    }
    begin(cache);
    *opened = cache;
    return PAGEDCACHE_OK;
}

void pc_api_close(pagedcache *cache) {
    if (!cache) return;
    for (int32_t i = 0; i < cache->num_plans; i++) pc_plan_drop(cache->plans[i].plan);
    void *const all[] = {cache->layers,  cache->rows,      cache->tables,      cache->vacant,
                         cache->named,   cache->copiers,   cache->step_rows,   cache->qo_indptr,
                         cache->kv_lens, cache->positions, cache->step_tables, cache->slots,
                         cache->copies,  cache->pairs,     cache->copy_from,   cache->copy_to};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    pc_blocks_free(&cache->blocks);
    pc_unmap(cache->memory, cache->memory_bytes);
    free(cache);
}

const pagedcache_layer *pc_api_layer(const pagedcache *cache, int32_t index) {
    if (cache && 0 <= index && index < cache->config.num_layers) return cache->layers + index;
    pc_fail(PAGEDCACHE_INVALID, "layer %d: the cache has layers 0 to %d", index,
            cache ? cache->config.num_layers - 1 : -1);
    return NULL;
}
