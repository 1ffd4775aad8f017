#include "blocks.h"

#include <stdlib.h>

#include "pagedcache.h"

int pc_blocks_make(pc_blocks *blocks, int32_t num_blocks) {
    const size_t n = (size_t)num_blocks + 1;
    blocks->num_blocks = blocks->num_free = num_blocks;
    blocks->free = malloc(n * sizeof *blocks->free);
    blocks->references = calloc(n, sizeof *blocks->references);
    blocks->reach = calloc(n, sizeof *blocks->reach);
    if (!blocks->free || !blocks->references || !blocks->reach) return PAGEDCACHE_NO_MEMORY;
    for (int32_t i = 0; i < num_blocks; i++) blocks->free[i] = num_blocks - i;
    return PAGEDCACHE_OK;
}

void pc_blocks_free(pc_blocks *blocks) {
    free(blocks->free);
    free(blocks->references);
    free(blocks->reach);
}
