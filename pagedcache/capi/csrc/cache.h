/* A cache: rows of sequences over blocks, the step that is open, and the K and V of its layers.
 *
 *     handle = generation << 32 | row      a handle that was released never names the next sequence of its row
 *
 *     tables   [max_sequences, pitch]      row r: the blocks of its sequence, those of an open step included
 *     step     [n, pitch]                  row i: a copy of the row of the step's sequence i, when extend filled it
 *
 * Between steps a sequence has exactly the blocks that its length needs. Invariants: check.c. */
#pragma once
#include <stddef.h>

#include "blocks.h"
#include "pagedcache.h"
#include "plan_checked.h"

typedef struct pc_row {
    int32_t generation; /* 1 or more; one more for each sequence that was here */
    int32_t is_alive;
    int32_t length;     /* tokens, without those of an open step */
    int32_t num_blocks; /* with those of an open step */
    int32_t in_step;    /* whether it is in the open step */
    uint32_t named;     /* the last call that named it */
} pc_row;

typedef struct pc_copy_made { /* by the open step: a block that others share, and the one in its place */
    int32_t entry;            /* which of the step's sequences */
    int32_t from, to;
} pc_copy_made;

typedef struct pc_kept_plan { /* of the open step, for all layers that ask alike */
    pagedcache_plan *plan;
    int64_t window, sink_tokens;
} pc_kept_plan;

enum { PC_KEPT_PLANS = 8 };

struct pagedcache {
    pagedcache_config config; /* with every default filled in */
    pagedcache_layer *layers; /* [num_layers] */
    void *memory;             /* of K and V, unless it is the caller's */
    int64_t memory_bytes;

    pc_blocks blocks;
    pc_row *rows;     /* [max_sequences] */
    int32_t *tables;  /* [max_sequences, pitch] */
    int32_t *vacant;  /* rows, the next one last */
    int32_t *named;   /* [max_sequences] rows of the call at hand, in its order */
    int32_t *copiers; /* [max_sequences] entries that the extend at hand copies for */
    int32_t pitch, num_vacant;
    uint32_t call; /* counts calls that name sequences */

    int32_t is_open; /* the step; then follow its arrays, which are the same for every step */
    pagedcache_step step;
    int32_t *step_rows, *step_tables, *qo_indptr, *kv_lens; /* [max_sequences], + 1 for qo_indptr */
    int64_t *positions, *slots;                             /* [tokens that all blocks hold] */
    pc_copy_made *copies;                                   /* [max_sequences] */
    int32_t *pairs;                                         /* [max_sequences, 2] as the caller sees them */
    int64_t *copy_from, *copy_to;                           /* and as pc_copy_layers does */
    int32_t num_copies;
    pc_kept_plan plans[PC_KEPT_PLANS];
    int32_t num_plans, oldest_plan;
};

/* PAGEDCACHE_OK, and rows in cache->named; else the words: stale handles, handles named twice, or, where `what` is not
 * NULL, in the open step, which `what` cannot be done to. */
int pc_name(pagedcache *cache, int32_t n, const int64_t *sequences, const char *what);
int32_t pc_find(const pagedcache *cache, int64_t sequence); /* row, or -1 */

static inline int32_t *pc_table(const pagedcache *cache, int32_t row) {
    return cache->tables + (int64_t)row * cache->pitch;
}
static inline int32_t pc_blocks_for(const pagedcache *cache, int64_t tokens) {
    return (int32_t)((tokens + cache->config.block_size - 1) / cache->config.block_size);
}
static inline int64_t pc_handle(const pagedcache *cache, int32_t row) {
    return (int64_t)cache->rows[row].generation << 32 | row;
}
void pc_keep_blocks(pagedcache *cache, int32_t row, int32_t keep); /* drops those beyond, the last one first */

/* The functions of the table that work on a cache; pagedcache.h says what they do. */
int pc_api_open(const pagedcache_config *config, pagedcache **cache);
void pc_api_close(pagedcache *cache);
const pagedcache_layer *pc_api_layer(const pagedcache *cache, int32_t index);
int pc_api_start(pagedcache *cache, int32_t n, int64_t *sequences);
int pc_api_extend(pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *counts);
int pc_api_can_extend(const pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *counts);
const pagedcache_step *pc_api_step(const pagedcache *cache);
const int32_t *pc_api_copies(const pagedcache *cache, int32_t *n);
int pc_api_attend_step(pagedcache *cache, int32_t layer, const pagedcache_tensors *tensors,
                       const pagedcache_options *options);
int pc_api_commit(pagedcache *cache);
int pc_api_abandon(pagedcache *cache);
int pc_api_fork(pagedcache *cache, int64_t sequence, int64_t at, int64_t *child);
int pc_api_truncate(pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *positions);
int pc_api_release(pagedcache *cache, int32_t n, const int64_t *sequences);
int64_t pc_api_length(const pagedcache *cache, int64_t sequence);
void pc_api_stats(const pagedcache *cache, pagedcache_stats *stats);
int pc_api_check(const pagedcache *cache);
