/* Who holds how many references to which block. Ids 1 to num_blocks; a block without references is on the free list.
 *
 * A last-in first-out list gives the blocks back in the order that they were taken in, so that what is taken back
 * leaves it as it was. */
#pragma once
#include <stdint.h>

typedef struct pc_blocks {
    int32_t *free;       /* [num_blocks] ids, the next one last */
    int32_t *references; /* [num_blocks + 1] */
    uint16_t *reach;     /* [num_blocks + 1] while an extend counts: see step.c; else 0 */
    int32_t num_blocks, num_free;
} pc_blocks;

int pc_blocks_make(pc_blocks *blocks, int32_t num_blocks); /* PC_OK or PC_NO_MEMORY; then still to be freed */
void pc_blocks_free(pc_blocks *blocks);

static inline int32_t pc_block_take(pc_blocks *blocks) { /* there is one */
    const int32_t block = blocks->free[--blocks->num_free];
    blocks->references[block] = 1;
    return block;
}

static inline void pc_block_drop(pc_blocks *blocks, int32_t block) {
    if (--blocks->references[block] == 0) blocks->free[blocks->num_free++] = block;
}
