"""Block tables of layer groups beside group 0: side groups.

Group 0 is one of full attention: its entries are the prefix of the sequence in the index, and all rows have it.
A side group's table has a place for the same logical blocks, of which a window keeps some:

    entry   0 .. sinks       sinks .. first       first .. filled       filled ..
            kept for ever    released: 0          blocks                not read

    filled      by admit as far as `most` blocks reach, then as the sequence grows
    first       rises with the committed position (slide, in commit_table), to the first block that a query at that
                position or behind it may see; sinks are kept all the same

A side group without a window keeps all: `first` stays 0. What is beyond a row's position, or is
shared, is treated in every group alike.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t

from pagedcache.core.records cimport NO_NODE, ZERO_BLOCK
from pagedcache.core.row_table cimport SWAPPED, VACANT, RowTable

from pagedcache.core._checks import require


@cython.no_gc_clear
cdef class GroupTable(RowTable):
    """Rows with a table for each layer group; see SequenceTable."""

    cdef int32_t c_lowest_seen(self, int32_t side, int32_t position, int32_t pad) noexcept nogil:
        """The first row coordinate behind the sinks that a query at `position`, or behind it, may see."""
        cdef int32_t window = self.sides[side].window
        if window == 0:
            return pad
        if self.sides[side].is_chunked:
            return position - (position - pad) % window
        return max(pad, position - window + 1)

    cdef int32_t c_next_slide(self, int32_t side, int32_t first, int32_t position, int32_t pad) noexcept nogil:
        """The next position at which a query sees nothing of block `first`, the first one that it sees from here."""
        cdef int64_t window = self.sides[side].window, behind = (first + <int64_t>1) * self.block_size
        if not self.sides[side].is_chunked:
            return <int32_t>min(behind + window - 1, <int64_t>self.max_length + 1)
        return <int32_t>min(position + window - (position - pad) % window, <int64_t>self.max_length + 1)

    cdef int32_t c_needed_from(self, int32_t side, int32_t blocks) noexcept nogil:
        """A sequence that goes on after so many blocks needs those from here on, and the sinks."""
        return self.c_block_of(self.c_lowest_seen(side, blocks * self.block_size, 0))

    cdef bint c_is_wanted(self, int32_t side, int32_t hits, int32_t entry) noexcept nogil:
        """Whether a sequence that goes on after `hits` blocks needs this one of them."""
        return entry < self.c_sinks(side, 0) or entry >= self.c_needed_from(side, hits)

    cdef int32_t c_side_hits(self, int32_t side, const int32_t *table, int32_t hits) noexcept nogil:
        """The longest hit, of at most `hits` blocks, for which the group has what it needs; table is of group 0.

        From the end: where a block is missing, no hit can end behind it that would need it.
        """
        cdef int32_t j, first = 0
        while first < min(self.c_sinks(side, 0), hits):
            if self.index.c_companion(self.pool.records[table[first]].node, side) == ZERO_BLOCK:
                hits = first
            first += 1
        j = hits - 1
        first = self.c_needed_from(side, hits)
        while j >= first and j >= 0:
            if self.index.c_companion(self.pool.records[table[j]].node, side) == ZERO_BLOCK:
                hits = j
                first = self.c_needed_from(side, hits)
            j -= 1
        return hits

    cdef int32_t c_common_hits(self, const int32_t *table, int32_t hits) noexcept nogil:
        """The longest hit, of at most `hits` blocks, that all groups can serve."""
        cdef int32_t side = 0, agreed = 0, found
        while agreed < self.num_sides and hits > 0:
            found = self.c_side_hits(side, table, hits)
            agreed = agreed + 1 if found == hits else 1
            hits = found
            side = side + 1 if side + 1 < self.num_sides else 0
        return hits

    cdef int32_t c_side_target(self, int32_t side, int32_t total, int32_t hits, int32_t pad) noexcept nogil:
        """Entries that admit fills for a prompt of `total` blocks of which `hits` were found."""
        if self.sides[side].window == 0:
            return total
        hits = max(hits, self.c_sinks(side, pad))
        return <int32_t>min(<int64_t>total, <int64_t>hits + self.sides[side].most)

    cdef int64_t c_blocks_of_row(self, int32_t total, int32_t pad) noexcept nogil:
        """Blocks in all groups that admit takes for a prompt of `total` blocks, if nothing of it is found."""
        cdef int64_t blocks = total
        cdef int32_t side
        for side in range(self.num_sides):
            blocks += self.c_side_target(side, total, 0, pad)
        return blocks

    cdef void c_append_side(self, int32_t side, int32_t row, int32_t num_blocks) noexcept nogil:
        """Extend the row's table to `num_blocks` entries; the caller has made enough blocks vacant."""
        cdef int32_t *table = self.c_side_table(side, row)
        cdef int32_t have = self.sides[side].filled[row]
        cdef int32_t before = table[have - 1] if have > 0 and self.c_is_held(side, row, have - 1) else ZERO_BLOCK
        self.pool.c_take(before, num_blocks - have, table + have)
        self.sides[side].filled[row] = num_blocks

    cdef int32_t c_drop_blocks(self, int32_t row, int32_t keep) noexcept nogil:
        """Drop the row's blocks beyond the first `keep` entries in every group; how many became usable."""
        cdef int32_t side, usable = 0
        for side in range(self.num_sides):
            usable += self.c_drop_side(side, row, keep)
        return usable + RowTable.c_drop_blocks(self, row, keep)

    cdef int32_t c_drop_side(self, int32_t side, int32_t row, int32_t keep) noexcept nogil:
        cdef int32_t *table = self.c_side_table(side, row)
        cdef int32_t j, usable = 0
        if keep >= self.sides[side].filled[row]:
            return 0
        self.pool.policy.c_tick()
        for j in range(self.sides[side].filled[row] - 1, keep - 1, -1):
            if self.c_is_held(side, row, j) and table[j] != ZERO_BLOCK:     # 0 where it is swapped out
                usable += self.pool.c_decref(table[j])
        self.sides[side].filled[row] = keep
        self.sides[side].clean[row] = min(self.sides[side].clean[row], keep)
        self.c_hide(row)
        return usable

    cdef void c_share_side(
        self, int32_t side, const int32_t *table, int32_t blocks, int32_t first, int32_t pad
    ) noexcept nogil:
        """One more reference to each block of the first `blocks` entries of a table that is released up to `first`."""
        cdef int32_t sinks = min(self.c_sinks(side, pad), blocks)
        first = max(first, sinks)
        self.pool.c_share(table, sinks)
        if blocks > first:
            self.pool.c_share(table + first, blocks - first)

    cdef void c_spoil_side(self, int32_t side, int32_t row, int32_t entry) noexcept nogil:
        """From `entry` on, the table row differs from what steps have shown."""
        cdef int32_t k
        cdef int32_t *shown
        self.sides[side].clean[row] = min(self.sides[side].clean[row], entry)
        for k in range(self.num_buffers):
            shown = self.sides[side].shown + k * self.max_sequences
            shown[row] = min(shown[row], entry)
            self.agreed[k * self.max_sequences + row] = -1

    cdef int32_t c_lowest_cut(self, int32_t row) noexcept nogil:
        """The lowest position to cut the row at: for lower ones, a window has let blocks go."""
        cdef int32_t side, first, cut = self.rows[row].pad
        for side in range(self.num_sides):
            first = self.sides[side].first[row]
            if first > self.c_sinks(side, self.rows[row].pad) and first * self.block_size > self.rows[row].pad:
                # A query at the cut must see nothing before block `first`.
                if self.sides[side].is_chunked:
                    cut = max(cut, self.c_chunk_start(side, row, first * self.block_size))
                else:
                    cut = max(cut, first * self.block_size + self.sides[side].window - 1)
        return cut

    cdef inline int32_t c_chunk_start(self, int32_t side, int32_t row, int32_t position) noexcept nogil:
        """The first start of a chunk at `position` or behind it."""
        cdef int32_t window = self.sides[side].window, pad = self.rows[row].pad
        return pad + (position - pad + window - 1) // window * window

    cdef int32_t c_side_start(self, int32_t side, int32_t row) noexcept nogil:
        """kv_starts of the row: its first held position behind the sinks; the pad where nothing was released."""
        cdef int32_t first = self.sides[side].first[row]
        if first <= self.c_sinks(side, self.rows[row].pad):
            return self.rows[row].pad
        return max(self.rows[row].pad, first * self.block_size)

    cdef dict c_references(self):
        """Also the entries of side groups."""
        cdef dict references = RowTable.c_references(self)
        cdef int32_t side, row, j
        for side in range(self.num_sides):
            for row in range(self.max_sequences):
                if self.rows[row].state == VACANT:
                    continue
                for j in range(self.sides[side].filled[row]):
                    if self.c_is_held(side, row, j) and self.c_side_table(side, row)[j] != ZERO_BLOCK:
                        block = self.c_side_table(side, row)[j]
                        references[block] = references.get(block, 0) + 1
        return references

    cdef int c_check(self) except -1:
        cdef int32_t side, row, j, block
        cdef int32_t *table
        RowTable.c_check(self)
        for side in range(self.num_sides):
            for row in range(self.max_sequences):
                if self.rows[row].state == VACANT:
                    continue
                table = self.c_side_table(side, row)
                require(self.c_blocks_for(self.rows[row].end) <= self.sides[side].filled[row] <= self.pitch,
                        f"row {row} has {self.sides[side].filled[row]} entries in group {side + 1} for "
                        f"{self.rows[row].end} positions")
                require(self.sides[side].first[row] <= self.c_sinks(side, self.rows[row].pad)
                        or self.sides[side].first[row] * self.block_size
                        <= self.c_lowest_seen(side, self.rows[row].position, self.rows[row].pad),
                        f"row {row} has released what group {side + 1} still sees")
                j = self.c_block_of(self.rows[row].end)
                if (self.rows[row].state != SWAPPED and self.rows[row].end % self.block_size > 0
                        and self.c_is_writable(self.c_table(row)[j])):
                    require(self.c_is_writable(table[j]),
                            f"block {table[j]} of row {row} is shared in group {side + 1}")
                for j in range(self.sides[side].filled[row]):
                    block = table[j]
                    require((block != ZERO_BLOCK) == self.c_is_held(side, row, j) or self.rows[row].state == SWAPPED,
                            f"entry {j} of row {row} in group {side + 1} is released, or is not")
                    if self.rows[row].state != SWAPPED and j >= self.c_blocks_for(self.rows[row].end):
                        require(self.c_is_writable(block), f"allotted block {block} is shared")
                    if block != ZERO_BLOCK and self.pool.records[block].node != NO_NODE:
                        require(self.index.c_companion(self.pool.records[block].node, side) == block,
                                f"block {block} of group {side + 1} is not its node's")
        return 0
