/* What a cache says of itself: figures, and whether its records agree with each other. */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "error.h"

void pc_api_stats(const pagedcache *cache, pagedcache_stats *stats) {
    if (!stats) return;
    memset(stats, 0, sizeof *stats);
    if (!cache) return;
    stats->num_blocks = cache->blocks.num_blocks;
    stats->free_blocks = cache->blocks.num_free;
    stats->used_blocks = stats->num_blocks - stats->free_blocks;
    stats->max_sequences = cache->config.max_sequences;
    stats->num_sequences = cache->config.max_sequences - cache->num_vacant;
    stats->memory_bytes = cache->memory_bytes;
    for (int32_t block = 1; block <= stats->num_blocks; block++)
        stats->shared_blocks += cache->blocks.references[block] > 1;
}

static int broken(const char *what, int64_t value, int64_t expected) {
    return pc_fail(PAGEDCACHE_BROKEN, "%s is %lld, but should be %lld: something has overwritten the cache's memory",
                   what, (long long)value, (long long)expected);
}

/* Counts the references that rows, and an open step to what it copied, hold to each block. */
static int count_references(const pagedcache *cache, int32_t *counted) {
    const int32_t num_blocks = cache->blocks.num_blocks;
    for (int32_t row = 0; row < cache->config.max_sequences; row++) {
        const pc_row *entry = cache->rows + row;
        if (!entry->is_alive) continue;
        if (!entry->in_step && entry->num_blocks != pc_blocks_for(cache, entry->length))
            return broken("the number of a sequence's blocks", entry->num_blocks, pc_blocks_for(cache, entry->length));
        for (int32_t i = 0; i < entry->num_blocks; i++) {
            const int32_t block = pc_table(cache, row)[i];
            if (block < 1 || block > num_blocks)
                return broken("a block of a table, not within 1 to its", block, num_blocks);
            counted[block]++;
        }
    }
    for (int32_t c = 0; c < cache->num_copies; c++) counted[cache->copies[c].from]++;
    return PAGEDCACHE_OK;
}

static int check_blocks(const pagedcache *cache, int32_t *counted) {
    const pc_blocks *blocks = &cache->blocks;
    int status = count_references(cache, counted);
    if (status) return status;
    for (int32_t block = 0; block <= blocks->num_blocks; block++) {
        if (blocks->references[block] != counted[block])
            return broken("the references of a block", blocks->references[block], counted[block]);
        if (blocks->reach[block]) return broken("the reach of a block", blocks->reach[block], 0);
    }
    for (int32_t i = 0; i < blocks->num_free; i++) {
        const int32_t block = blocks->free[i];
        if (block < 1 || block > blocks->num_blocks || counted[block])
            return broken("a free block, which is in use or twice on the list, or none of", block, blocks->num_blocks);
        counted[block] = 1;
    }
    for (int32_t block = 1; block <= blocks->num_blocks; block++)
        if (!counted[block]) return broken("the holders of a block that is not free", 0, 1);
    return PAGEDCACHE_OK;
}

int pc_api_check(const pagedcache *cache) {
    if (!cache) return pc_fail(PAGEDCACHE_INVALID, "cache is NULL; open one");
    int32_t alive = 0;
    for (int32_t row = 0; row < cache->config.max_sequences; row++) alive += cache->rows[row].is_alive;
    if (alive != cache->config.max_sequences - cache->num_vacant)
        return broken("the number of sequences", alive, cache->config.max_sequences - cache->num_vacant);
    int32_t *counted = calloc(cache->blocks.num_blocks + (size_t)1, sizeof *counted);
    if (!counted) return pc_fail(PAGEDCACHE_NO_MEMORY, "no memory to count %d blocks", cache->blocks.num_blocks);
    const int status = check_blocks(cache, counted);
    free(counted);
    return status;
}
