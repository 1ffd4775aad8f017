"""What a prompt shares with what is published, in all layer groups: found, counted, taken.

Whole blocks come from the index (group 0), as far as each side group has what a sequence that goes on behind them sees:
a windowed group just the last ones, and its sinks. Then comes the head of one block more.
"""

cimport cython
from libc.stdint cimport int32_t

from pagedcache.core.commit_table cimport CommitTable
from pagedcache.core.key_table cimport key_at
from pagedcache.core.records cimport NO_NODE, ZERO_BLOCK


@cython.no_gc_clear
cdef class HitTable(CommitTable):
    """Prefix hits; see SequenceTable."""

    cdef Hit c_hit(self, const Prompt *prompt, int32_t total, int32_t *blocks) noexcept nogil:
        """What a prompt, which is to have `total` blocks, shares; ids of group 0's whole ones go to `blocks`.

        Of a partial hit the shared block is held beside the row's own until it is copied. Where the pool is short of
        just this one, the prompt does with whole blocks. Where windows would hold more than there is, with what they
        find and what admit promises beyond it, it does without.
        """
        cdef Hit hit, whole
        hit.blocks, hit.node = 0, NO_NODE
        hit.head.tokens, hit.head.block = 0, ZERO_BLOCK
        if prompt.pad == 0 and prompt.length > 1 and self.num_state_blocks == 0:     # states are not kept
            self.c_find(prompt, blocks, &hit)
        self.c_count(prompt, total, blocks, &hit)
        if hit.head.tokens > 0 and hit.wanted > self.pool.c_usable() - hit.idle:
            whole = hit
            whole.head.tokens = 0
            self.c_count(prompt, total, blocks, &whole)
            if whole.wanted <= self.pool.c_usable() - whole.idle:
                return whole
        if self.num_sides > 0 and hit.shared + hit.wanted > self.pool.num_blocks:
            hit.blocks, hit.node, hit.head.tokens = 0, NO_NODE, 0
            self.c_count(prompt, total, blocks, &hit)
        return hit

    cdef void c_find(self, const Prompt *prompt, int32_t *blocks, Hit *hit) noexcept nogil:
        cdef int32_t left, side, cursor = 0
        hit.blocks = self.index.c_match(
            prompt.tokens, <int32_t>((prompt.length - 1) // self.block_size), prompt.keys, blocks, &hit.node
        )
        if self.num_sides > 0:
            hit.blocks = self.c_common_hits(blocks, hit.blocks)
            hit.node = NO_NODE if hit.blocks == 0 else self.pool.records[blocks[hit.blocks - 1]].node
        left = <int32_t>prompt.length - 1 - hit.blocks * self.block_size
        hit.head = self.index.c_find_head(
            hit.node, prompt.tokens + hit.blocks * <size_t>self.block_size, min(left, self.block_size - 1),
            key_at(prompt.keys, &cursor, hit.blocks)
        )
        for side in range(self.num_sides if hit.head.tokens > 0 else 0):
            if self.index.c_companion(self.pool.records[hit.head.block].node, side) == ZERO_BLOCK:
                hit.head.tokens = 0
                return

    cdef void c_count(self, const Prompt *prompt, int32_t total, const int32_t *blocks, Hit *hit) noexcept nogil:
        """Blocks that the hit shares in all groups, how many of them are idle, and those that are taken besides."""
        cdef int32_t side, j, block, head = hit.head.block if hit.head.tokens > 0 else ZERO_BLOCK
        hit.shared = hit.blocks
        hit.idle = 0
        hit.wanted = total - hit.blocks + self.c_state_target(total)
        for j in range(hit.blocks):
            hit.idle += self.pool.records[blocks[j]].refcount == 0
        if head != ZERO_BLOCK:
            hit.shared += 1
            hit.idle += self.pool.records[head].refcount == 0
        for side in range(self.num_sides):
            hit.wanted += self.c_side_target(side, total, hit.blocks, <int32_t>prompt.pad) - hit.blocks
            for j in range(hit.blocks + (head != ZERO_BLOCK)):
                if j == hit.blocks or self.c_is_wanted(side, hit.blocks, j):
                    block = self.index.c_companion(
                        self.pool.records[head if j == hit.blocks else blocks[j]].node, side
                    )
                    hit.shared += 1
                    hit.idle += self.pool.records[block].refcount == 0

    cdef void c_pin(self, int32_t row, const Hit *hit) noexcept nogil:
        """Take the blocks of a hit for the row, whose table names the whole ones of group 0; the head's too."""
        cdef int32_t side, j
        cdef int32_t *table = self.c_table(row)
        cdef int32_t *entries
        for j in range(hit.blocks):
            self.pool.c_incref(table[j])
        for side in range(self.num_sides):
            entries = self.c_side_table(side, row)
            for j in range(hit.blocks):
                entries[j] = ZERO_BLOCK
                if self.c_is_wanted(side, hit.blocks, j):
                    entries[j] = self.index.c_companion(self.pool.records[table[j]].node, side)
                    self.pool.c_incref(entries[j])
            self.sides[side].filled[row] = hit.blocks
            self.sides[side].first[row] = self.c_needed_from(side, hit.blocks)
        if hit.head.tokens > 0:
            self.pool.c_incref(hit.head.block)
            for side in range(self.num_sides):
                self.pool.c_incref(self.index.c_companion(self.pool.records[hit.head.block].node, side))

    cdef void c_tell_uses(self, int32_t row, int32_t hits) noexcept nogil:
        """The eviction policy hears which blocks the row, whose first entries were found, uses."""
        cdef int32_t side, j
        for side in range(-1, self.num_sides):
            for j in range(hits):
                if self.c_side_table(side, row)[j] != ZERO_BLOCK:
                    self.pool.policy.c_hit(self.c_side_table(side, row)[j], self.rows[row].level)

    cdef void c_share_head(self, int32_t row, const Hit *hit) noexcept nogil:
        """Until it is copied, the head's block stands in the row's tables; the row's own waits behind the others."""
        cdef int32_t side
        cdef int32_t *table = self.c_table(row)
        self.rows[row].partial = self.rows[row].position
        table[self.rows[row].num_blocks] = table[hit.blocks]
        table[hit.blocks] = hit.head.block
        self.rows[row].num_blocks += 1
        for side in range(self.num_sides):
            table = self.c_side_table(side, row)
            table[self.sides[side].filled[row]] = table[hit.blocks]
            table[hit.blocks] = self.index.c_companion(self.pool.records[hit.head.block].node, side)
            self.sides[side].filled[row] += 1
