/* Times of a decode step: by the C interface from extend to commit, and of the kernels alone, called from inside with a
 * plan made beforehand, on the same memory. Arguments: sequences, context, threads, rounds. Prints the lower quartile
 * of both, in us. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "layer.h"
#include "pagedcache.h"
#include "settings.h"
#include "store.h"
#include "threads.h"

enum { LAYERS = 30, KV_HEADS = 3, Q_HEADS = 9, DIM = 64, BLOCK = 16, MOST = 64 };

static const pagedcache_api *pc;
static pagedcache *cache;
static int64_t sequences[MOST];
static int32_t ones[MOST], lengths[MOST], n, context, threads;
static uint16_t q[MOST * Q_HEADS * DIM], k[MOST * KV_HEADS * DIM], v[MOST * KV_HEADS * DIM]; /* float16 */
static uint16_t out[MOST * Q_HEADS * DIM];

static void require(int status) {
    if (!status) return;
    fprintf(stderr, "status %d: %s\n", status, pc->error());
    exit(1);
}

static void fill(uint16_t *numbers, int64_t count, unsigned seed) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        numbers[i] = (uint16_t)((seed >> 16 & 0x83ff) | 0x3400); /* +-0.25 to 0.5 */
    }
}

static double by_interface(void) {
    const int64_t before = pc_now_ns();
    require(pc->extend(cache, n, sequences, ones));
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        const pagedcache_tensors tensors = {
            q, k, v, out, NULL, Q_HEADS, PAGEDCACHE_FLOAT16, PAGEDCACHE_FLOAT16, PAGEDCACHE_FLOAT16, 0, 0};
        require(pc->attend_step(cache, layer, &tensors, NULL));
    }
    require(pc->commit(cache));
    const double took = (double)(pc_now_ns() - before) / 1e3;
    require(pc->truncate(cache, n, sequences, lengths)); /* the next round sees the same context */
    return took;
}

static double kernels_alone(const pc_kernels *kernels, const pc_plan *plan, const int64_t *slots) {
    const int64_t before = pc_now_ns();
    for (int32_t l = 0; l < LAYERS; l++) {
        const pagedcache_layer *layer = pc->layer(cache, l);
        const pc_plane k_plane = pc_plane_of(layer, 0), v_plane = pc_plane_of(layer, 1);
        const pc_rows k_rows = {(char *)k, KV_HEADS, DIM, PC_F16}, v_rows = {(char *)v, KV_HEADS, DIM, PC_F16};
        pc_job job = {.k = k_plane,
                      .v = v_plane,
                      .q = {(char *)q, Q_HEADS, DIM, PC_F16},
                      .out = {(char *)out, Q_HEADS, DIM, PC_F16},
                      .rule = {.scale = 0.18033688f}, /* log2(e) / 8 */
                      .block_size = BLOCK,
                      .kv_heads = KV_HEADS,
                      .group = Q_HEADS / KV_HEADS};
        pc_store(kernels, &k_plane, &k_rows, BLOCK, slots, n, threads);
        pc_store(kernels, &v_plane, &v_rows, BLOCK, slots, n, threads);
        if (pc_attend(kernels, &job, plan, threads)) exit(1);
    }
    return (double)(pc_now_ns() - before) / 1e3;
}

static void open_cache(void) {
    const pagedcache_config config = {.num_layers = LAYERS,
                                      .num_blocks = n * (context / BLOCK + 2),
                                      .block_size = BLOCK,
                                      .kv_heads = KV_HEADS,
                                      .head_dim = DIM,
                                      .dtype = PAGEDCACHE_FLOAT16,
                                      .threads = threads};
    require(pc->open(&config, &cache));
    for (int32_t l = 0; l < LAYERS; l++) {
        const pagedcache_layer *layer = pc->layer(cache, l);
        const int64_t numbers = (config.num_blocks + INT64_C(1)) * BLOCK * KV_HEADS * DIM;
        fill(layer->k, numbers, 2 * (unsigned)l);
        fill(layer->v, numbers, 2 * (unsigned)l + 1);
    }
    require(pc->start(cache, n, sequences));
    for (int32_t i = 0; i < n; i++) ones[i] = 1, lengths[i] = context;
    require(pc->extend(cache, n, sequences, lengths));
    require(pc->commit(cache));
}

static int by_size(const void *one, const void *other) {
    const double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    n = atoi(argv[1]), context = atoi(argv[2]), threads = atoi(argv[3]);
    const int rounds = atoi(argv[4]);
    pc = pagedcache_get_api(PAGEDCACHE_API_VERSION);
    const pc_kernels *kernels;
    if (n < 1 || n > MOST || !pc || pc_active(&kernels)) return 2;
    fill(q, MOST * Q_HEADS * DIM, 100), fill(k, MOST * KV_HEADS * DIM, 101), fill(v, MOST * KV_HEADS * DIM, 102);
    open_cache();

    require(pc->extend(cache, n, sequences, ones));
    const pagedcache_step *step = pc->step(cache);
    const size_t entries = (size_t)n * (size_t)step->table_stride;
    int32_t *tables = malloc(entries * sizeof *tables), *zeros = calloc(MOST, sizeof *zeros);
    memcpy(tables, step->block_tables, entries * sizeof *tables);
    int64_t slots[MOST];
    memcpy(slots, step->slots, (size_t)n * sizeof *slots);
    const pc_step plain = {.num_sequences = n,
                           .num_tokens = n,
                           .block_size = BLOCK,
                           .num_blocks = n * (context / BLOCK + 2),
                           .width = step->table_width,
                           .stride = step->table_stride,
                           .block_tables = tables,
                           .qo_indptr = step->qo_indptr,
                           .kv_lens = step->kv_lens,
                           .kv_pads = zeros,
                           .kv_starts = zeros,
                           .positions = step->positions,
                           .window = INT32_MAX};
    pc_plan plan;
    if (pc_plan_make(&plan, &plain, KV_HEADS, Q_HEADS / KV_HEADS)) return 1;
    require(pc->abandon(cache));

    double *interface = malloc(2 * sizeof(double) * (size_t)rounds), *alone = interface + rounds;
    for (int r = -rounds / 10; r < rounds; r++) {
        const int first = r & 1;
        double times[2];
        for (int side = 0; side < 2; side++)
            times[side ^ first] = side ^ first ? kernels_alone(kernels, &plan, slots) : by_interface();
        if (r >= 0) interface[r] = times[0], alone[r] = times[1];
    }
    qsort(interface, (size_t)rounds, sizeof(double), by_size);
    qsort(alone, (size_t)rounds, sizeof(double), by_size);
    printf("%.2f %.2f\n", interface[rounds / 4], alone[rounds / 4]);
    pc_plan_free(&plan);
    free(tables), free(zeros), free(interface);
    pc->close(cache);
    return 0;
}
