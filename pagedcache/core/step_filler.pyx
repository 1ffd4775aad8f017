"""What opening a step does to rows and buffers once it is counted: copies, new blocks, table entries, slots.

What demand_table wrote at once is left as it is. All of it is nogil and cannot fail.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

from pagedcache.core.demand_table cimport Demand
from pagedcache.core.records cimport ZERO_BLOCK
from pagedcache.core.state_steps cimport StateSteps
from pagedcache.core.step_buffers cimport GroupArrays, StepArrays, StepBuffers


cdef inline void note_new(GroupArrays *group, int32_t i, const int32_t *blocks, int32_t count) noexcept nogil:
    """Entry i of the step has got these blocks."""
    group.appended[i] = count
    memcpy(group.new_blocks + group.num_new, blocks, count * sizeof(int32_t))
    group.num_new += count


cdef void show_table(
    GroupArrays *group, int32_t i, int32_t need, bint is_new, const int32_t *table, int32_t *shown, int32_t *clean
) noexcept nogil:
    """Bring place i of a group's block_tables up to the first `need` entries of a row's table."""
    cdef int32_t *place = group.block_tables + <size_t>i * group.width
    cdef int32_t j, first = 0 if is_new else max(shown[0], 0)
    if not is_new and shown[0] == need:
        return
    if first < need:
        memcpy(place + first, table + first, (need - first) * sizeof(int32_t))
    for j in range(need, group.widths[i]):
        place[j] = -1
    if clean[0] < need:
        group.told[2 * group.num_told] = i
        group.told[2 * group.num_told + 1] = clean[0]
        group.num_told += 1
        clean[0] = need
    shown[0] = need
    group.widths[i] = need


@cython.no_gc_clear
cdef class StepFiller(StateSteps):
    """Rows, and the buffers of the steps that name them; see StepTable."""

    cdef void c_fill(self, StepBuffers buffers, const Demand *demand) noexcept nogil:
        """Do what c_demand counted, and write what it left out."""
        cdef int32_t i, k, side = -1
        cdef GroupArrays *group = &buffers.group.c
        while group != NULL:
            group.num_copies = 0
            group.num_new = 0
            group.num_told = 0
            for k in range(group.num_copiers):
                self.c_copy_last_block(buffers, group, side, group.copiers[k])
            memset(group.appended, 0, demand.rows * sizeof(int32_t))
            side += 1
            group = group.next
        for k in range(demand.special):
            i = self.special[k]
            self.c_append_new(buffers, i)
            self.c_show(buffers, i)
            self.c_fill_tokens(buffers, i)
        if self.num_state_blocks > 0:
            self.c_fill_states(&buffers.c, demand.rows)
        buffers.c.num_sequences = demand.rows
        buffers.c.num_tokens = <int32_t>demand.tokens
        buffers.c.num_shared = -1
        buffers.c.is_tree = False

    cdef void c_append_new(self, StepBuffers buffers, int32_t i) noexcept nogil:
        """Blocks in every group for what lies beyond those that the row has."""
        cdef GroupArrays *group = &buffers.group.c
        cdef int32_t row = self.named[i], side
        cdef int32_t need = self.c_blocks_for(self.rows[row].end), have = self.rows[row].num_blocks
        if need > have:
            self.c_append_blocks(row, need)
            note_new(group, i, self.c_table(row) + have, need - have)
        for side in range(self.num_sides):
            group = group.next
            have = self.sides[side].filled[row]
            if need > have:
                self.c_append_side(side, row, need)
                note_new(group, i, self.c_side_table(side, row) + have, need - have)

    cdef void c_fill_tokens(self, StepBuffers buffers, int32_t i) noexcept nogil:
        """Slots, positions and owner of the sequence's new tokens, a block's worth at a time."""
        cdef int32_t first = buffers.c.qo_indptr[i], count = self.counts[i], row = self.named[i]
        cdef int64_t *positions = buffers.c.positions + first
        cdef int32_t *token_seq = buffers.c.token_seq + first
        cdef GroupArrays *group = buffers.group.c.next
        cdef int32_t start = buffers.c.kv_lens[i] - count, pad = self.rows[row].pad, k, side
        for k in range(count):
            positions[k] = start - pad + k
            token_seq[k] = i
        self.c_fill_slots(buffers.group.c.slots + first, self.c_table(row), start, count)
        for side in range(self.num_sides):
            self.c_fill_slots(group.slots + first, self.c_side_table(side, row), start, count)
            group = group.next

    cdef void c_fill_slots(self, int64_t *slots, const int32_t *table, int32_t start, int32_t count) noexcept nogil:
        cdef int32_t size = self.block_size
        cdef int32_t logical = self.c_block_of(start)
        cdef int32_t k = 0, stop
        cdef int64_t base
        while k < count:
            stop = min(count, (logical + 1) * size - start)
            base = (<int64_t>table[logical] - logical) * size + start     # slot of token k is base + k
            while k < stop:
                slots[k] = base + k
                k += 1
            logical += 1

    cdef void c_copy_last_block(self, StepBuffers buffers, GroupArrays *group, int32_t side, int32_t i) noexcept nogil:
        """Give the sequence a block of its own for the position it writes next; side -1: in group 0.

        The one place where a block becomes writable. The source keeps its reference, the step's now.
        """
        cdef int32_t row = self.named[i]
        cdef int32_t *table = self.c_side_table(side, row)
        cdef int32_t *have = &self.rows[row].num_blocks if side < 0 else &self.sides[side].filled[row]
        cdef int32_t start = buffers.c.kv_lens[i] - self.counts[i]
        cdef int32_t j = self.c_block_of(start)
        cdef int32_t source = table[j]
        cdef int32_t copy
        cdef size_t size = self.block_size
        if self.rows[row].partial == start:
            have[0] -= 1
            copy = table[have[0]]
        else:
            self.pool.c_take(table[j - 1] if j > 0 else ZERO_BLOCK, 1, &copy)
        memcpy(self.index.tokens + copy * size, self.index.tokens + source * size, size * sizeof(int32_t))
        table[j] = copy
        if side < 0:
            self.c_spoil(row, j)
        else:
            self.c_spoil_side(side, row, j)
        group.copies[2 * group.num_copies] = source
        group.copies[2 * group.num_copies + 1] = copy
        group.num_copies += 1
        self.num_copies += 1

    cdef void c_show(self, StepBuffers buffers, int32_t i) noexcept nogil:
        """Bring place i of the step up to the row's tables, in every group; note what diff has to tell."""
        cdef StepArrays *step = &buffers.c
        cdef GroupArrays *group = &buffers.group.c
        cdef int32_t row = self.named[i], before = step.places[row], side
        cdef int32_t need = self.c_blocks_for(self.rows[row].end)
        cdef bint is_new = step.held_rows[i] != row
        if is_new:
            if before >= 0 and step.held_rows[before] == row:
                step.held_rows[before] = -1
            step.held_rows[i] = row
            step.places[row] = i
        step.kv_pads[i] = self.rows[row].pad
        group.kv_starts[i] = self.rows[row].pad
        show_table(group, i, need, is_new, self.c_table(row), self.c_shown(buffers.number) + row, &self.rows[row].clean)
        for side in range(self.num_sides):
            group = group.next
            group.kv_starts[i] = self.c_side_start(side, row)
            show_table(
                group, i, need, is_new, self.c_side_table(side, row),
                self.sides[side].shown + buffers.number * self.max_sequences + row, &self.sides[side].clean[row]
            )
            if need > 0:
                self.tails[row * self.num_sides + side] = self.c_side_table(side, row)[need - 1]
        if self.num_sides > 0:
            self.agreed[buffers.number * self.max_sequences + row] = need

    cdef void c_set_depths(self, StepBuffers buffers, const int32_t *depths) noexcept nogil:
        """Positions of a tree: tokens of the same depth stand at the same position."""
        cdef int32_t i, k
        for i in range(buffers.c.num_sequences):
            for k in range(buffers.c.qo_indptr[i], buffers.c.qo_indptr[i + 1]):
                buffers.c.positions[k] = (
                    buffers.c.kv_lens[i] - self.counts[i] - self.rows[self.named[i]].pad + depths[k]
                )
        buffers.c.is_tree = True

    cdef void c_find_shared(self, StepBuffers buffers) noexcept nogil:
        """Runs of adjacent sequences that share leading blocks which all of them see whole.

        A run ends where the next sequence shares less than half of what the run so far shares: one short
        common prompt does not tear apart groups that have much more in common.
        """
        cdef const int32_t *tables = buffers.group.c.block_tables
        cdef size_t width = buffers.group.c.width
        cdef int32_t *found = buffers.c.shared_prefixes
        cdef int32_t i = 0, j, common, shared, first, n = buffers.c.num_sequences
        buffers.c.num_shared = 0
        while i + 1 < n:
            first = i
            shared = 0
            while i + 1 < n:
                common = 0
                j = min(self.c_whole_blocks(buffers, i), self.c_whole_blocks(buffers, i + 1))
                while common < j and tables[i * width + common] == tables[(i + 1) * width + common]:
                    common += 1
                if common == 0 or 2 * common < shared:
                    break
                shared = common if shared == 0 else min(shared, common)
                i += 1
            i += 1
            if shared > 0:
                found[3 * buffers.c.num_shared] = first
                found[3 * buffers.c.num_shared + 1] = i - first
                found[3 * buffers.c.num_shared + 2] = shared
                buffers.c.num_shared += 1

    cdef inline int32_t c_whole_blocks(self, StepBuffers buffers, int32_t i) noexcept nogil:
        """Blocks of sequence i that lie wholly before its new tokens; 0 where it begins with a pad."""
        if buffers.c.kv_pads[i] > 0:
            return 0
        return self.c_block_of(buffers.c.kv_lens[i] - buffers.c.qo_indptr[i + 1] + buffers.c.qo_indptr[i])
