/* Sequences between steps: which handle names which row, and what starts, forks, rolls back and ends them. */
#include <string.h>

#include "cache.h"
#include "error.h"

/* -- naming -------------------------------------------------------------------------------------------------- */

int32_t pc_find(const pagedcache *cache, int64_t sequence) {
    const int64_t row = sequence & INT64_C(0xffffffff);
    if (row >= cache->config.max_sequences || !cache->rows[row].is_alive ||
        cache->rows[row].generation != sequence >> 32)
        return -1;
    return (int32_t)row;
}

static int stale(int64_t sequence, int64_t i) {
    return pc_fail(PAGEDCACHE_STALE, "sequence %lld (number %lld of the call) was released, or never started here",
                   (long long)sequence, (long long)i);
}

static int in_step(int64_t sequence, const char *what) {
    return pc_fail(PAGEDCACHE_STEP_OPEN, "sequence %lld is in the open step: commit or abandon it, then %s",
                   (long long)sequence, what);
}

static void begin_call(pagedcache *cache) {
    if (++cache->call) return;
    cache->call = 1; /* all numbers have been used once: forget them */
    for (int32_t row = 0; row < cache->config.max_sequences; row++) cache->rows[row].named = 0;
}

static int no_cache(void) { return pc_fail(PAGEDCACHE_INVALID, "cache is NULL; open one"); }

int pc_name(pagedcache *cache, int32_t n, const int64_t *sequences, const char *what) {
    if (!cache) return no_cache();
    if (n < 0 || (n && !sequences))
        return pc_fail(PAGEDCACHE_INVALID, "n is %d and sequences %p; give the handles of 0 or more", n,
                       (const void *)sequences);
    begin_call(cache);
    for (int32_t i = 0; i < n; i++) {
        const int32_t row = pc_find(cache, sequences[i]);
        if (row < 0) return stale(sequences[i], i);
        if (cache->rows[row].named == cache->call)
            return pc_fail(PAGEDCACHE_INVALID, "sequence %lld is named twice; name each once", (long long)sequences[i]);
        if (what && cache->rows[row].in_step) return in_step(sequences[i], what);
        cache->rows[row].named = cache->call;
        cache->named[i] = row; /* distinct rows: i stays below max_sequences */
    }
    return PAGEDCACHE_OK;
}

/* -- rows ------------------------------------------------------------------------------------------------------ */

void pc_keep_blocks(pagedcache *cache, int32_t row, int32_t keep) {
    int32_t *table = pc_table(cache, row), *have = &cache->rows[row].num_blocks;
    while (*have > keep) pc_block_drop(&cache->blocks, table[--*have]);
}

static int32_t open_row(pagedcache *cache) {
    const int32_t row = cache->vacant[--cache->num_vacant];
    cache->rows[row].is_alive = 1;
    cache->rows[row].length = cache->rows[row].num_blocks = 0;
    return row;
}

static void close_row(pagedcache *cache, int32_t row) {
    pc_row *entry = cache->rows + row;
    entry->is_alive = entry->length = 0;
    entry->generation = entry->generation < INT32_MAX ? entry->generation + 1 : 1;
    cache->vacant[cache->num_vacant++] = row;
}

static int check_vacant(const pagedcache *cache, int32_t n) {
    if (n <= cache->num_vacant) return PAGEDCACHE_OK;
    return pc_fail(PAGEDCACHE_OUT_OF_SEQUENCES,
                   "%d sequences wanted, %d of %d can be started: release some, or open the "
                   "cache with a larger max_sequences",
                   n, cache->num_vacant, cache->config.max_sequences);
}

/* -- verbs ------------------------------------------------------------------------------------------------------- */

int pc_api_start(pagedcache *cache, int32_t n, int64_t *sequences) {
    if (!cache) return no_cache();
    if (n < 0 || (n && !sequences))
        return pc_fail(PAGEDCACHE_INVALID, "n is %d and sequences %p; give room for 0 or more", n, (void *)sequences);
    const int status = check_vacant(cache, n);
    for (int32_t i = 0; !status && i < n; i++) sequences[i] = pc_handle(cache, open_row(cache));
    return status;
}

int pc_api_fork(pagedcache *cache, int64_t sequence, int64_t at, int64_t *child) {
    if (!cache) return no_cache();
    const int32_t parent = pc_find(cache, sequence);
    int status;
    if (!child) return pc_fail(PAGEDCACHE_INVALID, "child is NULL; give the place for the handle");
    if (parent < 0) return stale(sequence, 0);
    if (cache->rows[parent].in_step) return in_step(sequence, "fork");
    if (at == -1) at = cache->rows[parent].length;
    if (at < 0 || at > cache->rows[parent].length)
        return pc_fail(PAGEDCACHE_INVALID, "at is %lld; the sequence has %d tokens: 0 to that, or -1 for all",
                       (long long)at, cache->rows[parent].length);
    if ((status = check_vacant(cache, 1))) return status;
    const int32_t row = open_row(cache), blocks = pc_blocks_for(cache, at);
    memcpy(pc_table(cache, row), pc_table(cache, parent), sizeof(int32_t) * (size_t)blocks);
    for (int32_t i = 0; i < blocks; i++) cache->blocks.references[pc_table(cache, row)[i]]++;
    cache->rows[row].num_blocks = blocks;
    cache->rows[row].length = (int32_t)at;
    *child = pc_handle(cache, row);
    return PAGEDCACHE_OK;
}

int pc_api_truncate(pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *positions) {
    const int status = pc_name(cache, n, sequences, "truncate");
    if (status) return status;
    if (n && !positions) return pc_fail(PAGEDCACHE_INVALID, "positions is NULL; give %d of them", n);
    for (int32_t i = 0; i < n; i++)
        if (positions[i] < 0 || positions[i] > cache->rows[cache->named[i]].length)
            return pc_fail(PAGEDCACHE_INVALID, "positions[%d] is %d; the sequence has %d tokens: 0 to that", i,
                           positions[i], cache->rows[cache->named[i]].length);
    for (int32_t i = 0; i < n; i++) {
        cache->rows[cache->named[i]].length = positions[i];
        pc_keep_blocks(cache, cache->named[i], pc_blocks_for(cache, positions[i]));
    }
    return PAGEDCACHE_OK;
}

int pc_api_release(pagedcache *cache, int32_t n, const int64_t *sequences) {
    const int status = pc_name(cache, n, sequences, "release");
    for (int32_t i = 0; !status && i < n; i++) {
        pc_keep_blocks(cache, cache->named[i], 0);
        close_row(cache, cache->named[i]);
    }
    return status;
}

int64_t pc_api_length(const pagedcache *cache, int64_t sequence) {
    const int32_t row = cache ? pc_find(cache, sequence) : -1;
    if (row >= 0) return cache->rows[row].length;
    stale(sequence, 0);
    return -1;
}
