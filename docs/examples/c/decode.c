/* A prompt, a few decode steps, and a fork: the cache of a two-layer model in C.
 *
 *     cc -std=c99 decode.c $(python -m pagedcache.capi --cflags --libs) -o decode && ./decode
 *
 * Where a model would compute q, k and v of a token, `number` makes them up. Each line printed is a new token, and the
 * first and last number that attention gave it in the last layer. */
#include <stdio.h>
#include <stdlib.h>

#include <pagedcache.h>

enum { LAYERS = 2, KV_HEADS = 2, Q_HEADS = 4, HEAD_DIM = 16, MOST = 8 /* new tokens of a step */ };

static const pagedcache_api *pc;

static void require(int status) {
    if (status == PAGEDCACHE_OK) return;
    fprintf(stderr, "error %d: %s\n", status, pc->error());
    exit(1);
}

enum { Q, K, V };

static float number(int kind, int layer, int token, int i) {
    return (float)((kind * 31 + layer * 17 + token * 13 + i * 7) % 64 - 32) / 32;
}

static void fill(float *rows, int kind, int layer, const int *tokens, int n, int width) {
    for (int t = 0; t < n; t++)
        for (int i = 0; i < width; i++) rows[t * width + i] = number(kind, layer, tokens[t], i);
}

/* One step: sequence s gets counts[s] of the tokens, which follow each other in the order of the sequences. */
static void run_step(pagedcache *cache, int n, const int64_t *sequences, const int32_t *counts, const int *tokens) {
    static float q[MOST * Q_HEADS * HEAD_DIM], k[MOST * KV_HEADS * HEAD_DIM], v[MOST * KV_HEADS * HEAD_DIM];
    static float out[MOST * Q_HEADS * HEAD_DIM];
    require(pc->extend(cache, n, sequences, counts));
    const int new_tokens = pc->step(cache)->num_tokens;
    for (int layer = 0; layer < LAYERS; layer++) {
        pagedcache_tensors tensors = {0};
        fill(q, Q, layer, tokens, new_tokens, Q_HEADS * HEAD_DIM);
        fill(k, K, layer, tokens, new_tokens, KV_HEADS * HEAD_DIM);
        fill(v, V, layer, tokens, new_tokens, KV_HEADS * HEAD_DIM);
        tensors.q = q, tensors.k = k, tensors.v = v, tensors.out = out;
        tensors.q_heads = Q_HEADS;
        require(pc->attend_step(cache, layer, &tensors, NULL));
    }
    require(pc->commit(cache));
    for (int t = 0; t < new_tokens; t++)
        printf("%d %.9g %.9g\n", tokens[t], out[t * Q_HEADS * HEAD_DIM], out[(t + 1) * Q_HEADS * HEAD_DIM - 1]);
}

int main(void) {
    pagedcache_config config = {0};
    pagedcache_stats stats;
    pagedcache *cache;
    int64_t sequences[2];
    const int prompt[] = {1, 2, 3, 4, 5, 6}, both[] = {10, 20};
    const int32_t prompt_length = 6, one_each[] = {1, 1};

    pc = pagedcache_get_api(PAGEDCACHE_API_VERSION);
    if (!pc) {
        fprintf(stderr, "libpagedcache is older than this program: upgrade pagedcache\n");
        return 1;
    }
    config.num_layers = LAYERS, config.num_blocks = 100, config.block_size = 4;
    config.kv_heads = KV_HEADS, config.head_dim = HEAD_DIM, config.dtype = PAGEDCACHE_FLOAT16;
    require(pc->open(&config, &cache));

    require(pc->start(cache, 1, sequences));
    run_step(cache, 1, sequences, &prompt_length, prompt);
    for (int token = 7; token <= 9; token++) run_step(cache, 1, sequences, one_each, &token);

    require(pc->fork(cache, sequences[0], -1, &sequences[1])); /* shares all blocks; */
    run_step(cache, 2, sequences, one_each, both);             /* the one that is written to is copied first */

    pc->stats(cache, &stats);
    printf("blocks %d, shared %d\n", stats.used_blocks, stats.shared_blocks);
    require(pc->release(cache, 2, sequences));
    pc->close(cache);
    return 0;
}
