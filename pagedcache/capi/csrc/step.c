/* Opening a step and closing it: extend, can_extend, commit, abandon.
 *
 * extend counts first what it takes, then does it, which cannot fail.
 *
 * Sequences that share the block in whose middle they go on write one after the other: each but the last copies it, and
 * the last one, which alone has it then, writes in place. Not, however, where one of those that copy stands further on:
 * abandon gives the block back to it, with its tokens. So each copier's reference is withheld while counting, and
 * `reach` says how far they stand. The step keeps these references until it closes. */
#include <string.h>

#include "cache.h"
#include "calls.h"
#include "error.h"

typedef struct demand {
    int64_t blocks, tokens;
    int32_t copies;
} demand;

/* -- counting --------------------------------------------------------------------------------------------------- */

static int check_counts(const pagedcache *cache, int32_t n, const int32_t *counts) {
    int64_t tokens = 0;
    if (n && !counts) return pc_fail(PAGEDCACHE_INVALID, "counts is NULL; give %d of them", n);
    for (int32_t i = 0; i < n; i++) {
        const int32_t length = cache->rows[cache->named[i]].length, most = cache->config.max_length;
        if (counts[i] < 0) return pc_fail(PAGEDCACHE_INVALID, "counts[%d] is %d; it must be 0 or more", i, counts[i]);
        if (counts[i] > most - length)
            return pc_fail(PAGEDCACHE_INVALID,
                           "counts[%d] is %d; with the %d tokens that it has the sequence would pass "
                           "max_length, %d",
                           i, counts[i], length, most);
        tokens += counts[i];
    }
    if (tokens <= INT32_MAX) return PAGEDCACHE_OK;
    return pc_fail(PAGEDCACHE_INVALID, "%lld tokens are too many for one step: give them in several",
                   (long long)tokens);
}

/* The block in whose middle entry i goes on, or 0; *offset: its place in it. */
static int32_t middle_block(const pagedcache *cache, int32_t i, int32_t count, int32_t *offset) {
    const int32_t row = cache->named[i], length = cache->rows[row].length, size = cache->config.block_size;
    *offset = length % size;
    return count && *offset ? pc_table(cache, row)[length / size] : 0;
}

static demand count_all(pagedcache *cache, int32_t n, const int32_t *counts) {
    demand wanted = {0, 0, 0};
    int32_t *references = cache->blocks.references, offset;
    uint16_t *reach = cache->blocks.reach;
    for (int32_t i = 0; i < n; i++) {
        const pc_row *row = cache->rows + cache->named[i];
        const int32_t block = middle_block(cache, i, counts[i], &offset);
        wanted.tokens += counts[i];
        wanted.blocks += pc_blocks_for(cache, (int64_t)row->length + counts[i]) - row->num_blocks;
        if (!block || (references[block] == 1 && reach[block] <= offset)) continue;
        references[block]--;
        if (reach[block] < offset) reach[block] = (uint16_t)offset;
        cache->copiers[wanted.copies++] = i;
        wanted.blocks++;
    }
    for (int32_t c = 0; c < wanted.copies; c++) {
        const int32_t block = middle_block(cache, cache->copiers[c], 1, &offset);
        references[block]++;
        reach[block] = 0;
    }
    return wanted;
}

static int count(pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *counts, demand *wanted) {
    int status = pc_name(cache, n, sequences, NULL);
    if (status) return status;
    if (cache->is_open)
        return pc_fail(PAGEDCACHE_STEP_OPEN, "a step of %d sequences is open: commit or abandon it first",
                       cache->step.num_sequences);
    if ((status = check_counts(cache, n, counts))) return status;
    *wanted = count_all(cache, n, counts);
    if (wanted->blocks <= cache->blocks.num_free) return PAGEDCACHE_OK;
    return pc_fail(PAGEDCACHE_OUT_OF_BLOCKS, "%lld blocks wanted, %d of %d are free: release or truncate sequences",
                   (long long)wanted->blocks, cache->blocks.num_free, cache->blocks.num_blocks);
}

int pc_api_can_extend(const pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *counts) {
    demand wanted;
    return count((pagedcache *)cache, n, sequences, counts, &wanted); /* what changes in it is scratch */
}

/* -- doing ------------------------------------------------------------------------------------------------------- */

static void take_copies(pagedcache *cache, int32_t num_copies) {
    int32_t offset;
    for (int32_t c = 0; c < num_copies; c++) {
        const int32_t i = cache->copiers[c], row = cache->named[i], from = middle_block(cache, i, 1, &offset);
        const int32_t to = pc_block_take(&cache->blocks);
        pc_table(cache, row)[cache->rows[row].length / cache->config.block_size] = to;
        cache->copies[c] = (pc_copy_made){i, from, to};
        cache->pairs[2 * c] = from, cache->pairs[2 * c + 1] = to;
        cache->copy_from[c] = from, cache->copy_to[c] = to;
    }
    cache->num_copies = num_copies;
}

static void append(pagedcache *cache, int32_t i, int32_t tokens) {
    const int32_t number = cache->named[i], size = cache->config.block_size, from = cache->qo_indptr[i];
    pc_row *row = cache->rows + number;
    int32_t *table = pc_table(cache, number);
    const int32_t need = pc_blocks_for(cache, (int64_t)row->length + tokens);
    while (row->num_blocks < need) table[row->num_blocks++] = pc_block_take(&cache->blocks);
    for (int32_t t = 0; t < tokens; t++) {
        const int32_t position = row->length + t;
        cache->positions[from + t] = position;
        cache->slots[from + t] = (int64_t)table[position / size] * size + position % size;
    }
    cache->qo_indptr[i + 1] = from + tokens;
    cache->kv_lens[i] = row->length + tokens;
    cache->step_rows[i] = number;
    row->in_step = 1;
    memcpy(cache->step_tables + (int64_t)i * cache->pitch, table, sizeof(int32_t) * (size_t)need);
    if (cache->step.table_width < need) cache->step.table_width = need;
}

int pc_api_extend(pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *counts) {
    demand wanted;
    const int status = count(cache, n, sequences, counts, &wanted);
    if (status) return status;
    cache->step.table_width = 0;
    cache->qo_indptr[0] = 0;
    take_copies(cache, wanted.copies);
    for (int32_t i = 0; i < n; i++) append(cache, i, counts[i]);
    cache->step.num_sequences = n;
    cache->step.num_tokens = (int32_t)wanted.tokens;
    cache->is_open = 1;
    if (wanted.copies)
        pc_copy_layers(cache->layers, cache->config.num_layers, cache->copy_from, cache->copy_to, wanted.copies,
                       cache->config.threads);
    return PAGEDCACHE_OK;
}

const pagedcache_step *pc_api_step(const pagedcache *cache) {
    if (cache && cache->is_open) return &cache->step;
    pc_fail(PAGEDCACHE_NO_STEP, "no step is open: extend first");
    return NULL;
}

const int32_t *pc_api_copies(const pagedcache *cache, int32_t *n) {
    const int is_open = pc_api_step(cache) != NULL;
    if (n) *n = is_open ? cache->num_copies : 0;
    return is_open ? cache->pairs : NULL;
}

/* -- closing ------------------------------------------------------------------------------------------------------ */

static int check_open(const pagedcache *cache) {
    if (!cache) return pc_fail(PAGEDCACHE_INVALID, "cache is NULL; open one");
    return pc_api_step(cache) ? PAGEDCACHE_OK : PAGEDCACHE_NO_STEP;
}

static void shut(pagedcache *cache) {
    for (int32_t i = 0; i < cache->step.num_sequences; i++) cache->rows[cache->step_rows[i]].in_step = 0;
    for (int32_t i = 0; i < cache->num_plans; i++) pc_plan_drop(cache->plans[i].plan);
    cache->num_plans = cache->oldest_plan = cache->num_copies = cache->is_open = 0;
}

int pc_api_commit(pagedcache *cache) {
    const int status = check_open(cache);
    if (status) return status;
    for (int32_t i = 0; i < cache->step.num_sequences; i++) cache->rows[cache->step_rows[i]].length = cache->kv_lens[i];
    for (int32_t c = 0; c < cache->num_copies; c++) pc_block_drop(&cache->blocks, cache->copies[c].from);
    shut(cache);
    return PAGEDCACHE_OK;
}

int pc_api_abandon(pagedcache *cache) {
    const int status = check_open(cache);
    if (status) return status;
    for (int32_t i = cache->step.num_sequences - 1; i >= 0; i--)
        pc_keep_blocks(cache, cache->step_rows[i], pc_blocks_for(cache, cache->rows[cache->step_rows[i]].length));
    for (int32_t c = cache->num_copies - 1; c >= 0; c--) {
        const pc_copy_made *copy = cache->copies + c;
        const int32_t row = cache->step_rows[copy->entry];
        pc_table(cache, row)[cache->rows[row].length / cache->config.block_size] = copy->from;
        pc_block_drop(&cache->blocks, copy->to);
    }
    shut(cache);
    return PAGEDCACHE_OK;
}
