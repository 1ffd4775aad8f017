/* Random calls of the C interface's cache against a model that keeps each sequence's tokens in an array: for
 * sanitizers, without Python. After every call the K and V that each sequence's table leads to must be its tokens.
 *
 *     cache_check [SEED [CALLS]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pagedcache.h"

enum { LAYERS = 2, BLOCKS = 40, BLOCK = 4, SEQUENCES = 9, LENGTH = 50, DIM = 2, MOST = SEQUENCES * LENGTH };

typedef struct model {
    int64_t id; /* 0: there is none */
    int32_t length;
    float tokens[LENGTH];
} model;

static const pagedcache_api *pc;
static pagedcache *cache;
static model models[SEQUENCES];
static uint64_t state;
static float next_token = 1;
static int refusals, copies;

static void fail(const char *what, int status) {
    fprintf(stderr, "%s: status %d, %s\n", what, status, pc->error());
    exit(1);
}

static void must(const char *what, int status, int wanted) {
    if (status != wanted) fail(what, status);
}

static int32_t below(int32_t n) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (int32_t)((state >> 33) % (uint64_t)n);
}

static int choose(model **chosen) {
    int n = 0;
    for (int i = 0; i < SEQUENCES; i++)
        if (models[i].id && below(3)) chosen[n++] = models + i;
    return n;
}

static void check_bytes(const model *m, const pagedcache_step *step, int32_t s) {
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        const float *k = pc->layer(cache, layer)->k, *v = pc->layer(cache, layer)->v;
        for (int32_t t = 0; t < m->length; t++) {
            const int64_t slot = step->block_tables[s * step->table_stride + t / BLOCK] * (int64_t)BLOCK + t % BLOCK;
            if (k[slot * DIM] != m->tokens[t] || v[slot * DIM + 1] != -m->tokens[t]) {
                fprintf(stderr, "token %d of sequence %d was overwritten\n", t, s);
                exit(1);
            }
        }
    }
}

static void check_all(void) {
    int64_t ids[SEQUENCES];
    int32_t none[SEQUENCES] = {0}, n = 0;
    const model *alive[SEQUENCES];
    for (int i = 0; i < SEQUENCES; i++)
        if (models[i].id) alive[n] = models + i, ids[n++] = models[i].id;
    must("check", pc->check(cache), PAGEDCACHE_OK);
    must("extend by nothing", pc->extend(cache, n, ids, none), PAGEDCACHE_OK);
    for (int32_t s = 0; s < n; s++) {
        if (pc->length(cache, ids[s]) != alive[s]->length) fail("length", 0);
        check_bytes(alive[s], pc->step(cache), s);
    }
    must("commit", pc->commit(cache), PAGEDCACHE_OK);
}

static void start(void) {
    int i = 0;
    while (i < SEQUENCES && models[i].id) i++;
    int64_t id;
    const int status = pc->start(cache, 1, &id);
    must("start", status, i < SEQUENCES ? PAGEDCACHE_OK : PAGEDCACHE_OUT_OF_SEQUENCES);
    if (!status) models[i] = (model){.id = id};
}

static void attend(int32_t tokens, const float *written) {
    static float q[MOST * DIM], k[MOST * DIM], v[MOST * DIM], out[MOST * DIM];
    for (int32_t t = 0; t < tokens * DIM; t++) k[t] = written[t / DIM], v[t] = -k[t];
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        const pagedcache_tensors tensors = {.q = q, .k = k, .v = v, .out = out, .q_heads = 1, .window = below(2) * 5};
        must("attend_step", pc->attend_step(cache, layer, &tensors, NULL), PAGEDCACHE_OK);
    }
}

static void step(void) {
    model *chosen[SEQUENCES];
    int64_t ids[SEQUENCES];
    int32_t counts[SEQUENCES], n = choose(chosen), tokens = 0, num_copies;
    float written[MOST];
    for (int32_t i = 0; i < n; i++) {
        const int32_t most = LENGTH - chosen[i]->length;
        ids[i] = chosen[i]->id, counts[i] = below(4) ? below(2) : below(15);
        if (counts[i] > most) counts[i] = most;
        for (int32_t t = 0; t < counts[i]; t++) written[tokens++] = next_token++;
    }
    const int status = pc->extend(cache, n, ids, counts);
    if (status == PAGEDCACHE_OUT_OF_BLOCKS) {
        refusals++;
        return;
    }
    must("extend", status, PAGEDCACHE_OK);
    pc->copies(cache, &num_copies);
    copies += num_copies;
    attend(tokens, written);
    if (below(3) == 0) {
        must("abandon", pc->abandon(cache), PAGEDCACHE_OK);
        return;
    }
    must("commit", pc->commit(cache), PAGEDCACHE_OK);
    for (int32_t i = 0, at = 0; i < n; at += counts[i++]) {
        memcpy(chosen[i]->tokens + chosen[i]->length, written + at, sizeof(float) * (size_t)counts[i]);
        chosen[i]->length += counts[i];
    }
}

static void fork_one(void) {
    const int from = below(SEQUENCES), to = below(SEQUENCES);
    if (!models[from].id || models[to].id) return;
    model child = models[from];
    child.length = below(2) ? child.length : below(child.length + 1);
    must("fork", pc->fork(cache, models[from].id, child.length, &child.id), PAGEDCACHE_OK);
    models[to] = child;
}

static void truncate_some(void) {
    model *chosen[SEQUENCES];
    int64_t ids[SEQUENCES];
    int32_t lengths[SEQUENCES], n = choose(chosen);
    for (int32_t i = 0; i < n; i++) ids[i] = chosen[i]->id, lengths[i] = below(chosen[i]->length + 1);
    must("truncate", pc->truncate(cache, n, ids, lengths), PAGEDCACHE_OK);
    for (int32_t i = 0; i < n; i++) chosen[i]->length = lengths[i];
}

static void release_one(void) {
    model *m = models + below(SEQUENCES);
    must("release", pc->release(cache, 1, &m->id), m->id ? PAGEDCACHE_OK : PAGEDCACHE_STALE);
    if (m->id) must("release again", pc->release(cache, 1, &m->id), PAGEDCACHE_STALE);
    m->id = 0;
}

int main(int argc, char **argv) {
    const pagedcache_config config = {.num_layers = LAYERS,
                                      .num_blocks = BLOCKS,
                                      .block_size = BLOCK,
                                      .kv_heads = 1,
                                      .head_dim = DIM,
                                      .max_sequences = SEQUENCES,
                                      .max_length = LENGTH,
                                      .threads = 2};
    void (*const verbs[])(void) = {start, step, step, step, fork_one, truncate_some, release_one};
    pc = pagedcache_get_api(PAGEDCACHE_API_VERSION);
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const int calls = argc > 2 ? atoi(argv[2]) : 20000;
    must("open", pc->open(&config, &cache), PAGEDCACHE_OK);
    for (int i = 0; i < calls; i++) {
        verbs[below(sizeof verbs / sizeof *verbs)]();
        check_all();
    }
    pc->close(cache);
    if (!refusals || !copies) fail("the calls were too tame", 0);
    printf("%d calls, %d copies, %d times out of blocks\n", calls, copies, refusals);
    return 0;
}
