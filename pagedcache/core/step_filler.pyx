"""What opening a step does to rows and buffers: counting what it takes, then doing it.

    c_demand    one pass over the sequences. Most of them need one slot in a block that they have: their
                part of the step is written at once. The others are counted and listed as special.
    c_forgo     takes the pass back, where the step cannot be had
    c_fill      copies, new blocks and table entries of the special ones

All of it is nogil and cannot fail; StepTable has the verbs around it.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from pagedcache.core.records cimport BlockRecord, NO_NODE, ZERO_BLOCK
from pagedcache.core.row_table cimport OPEN_OR_CLOSED, Row, RowTable, named_row
from pagedcache.core.step_buffers cimport GroupArrays, StepArrays, StepBuffers


@cython.no_gc_clear
cdef class StepFiller(RowTable):
    """Rows, and the buffers of the steps that name them; see StepTable."""

    def __cinit__(
        self, pool, block_size, *, max_sequences=256, max_length=None, steps_in_flight=1, int tag_bits=64, events=None,
        fingerprint=b"", max_pinned=None
    ):
        cdef int32_t k
        cdef StepBuffers buffers
        for k in range(self.num_buffers - 1, -1, -1):
            buffers = StepBuffers(self.max_sequences, k)
            buffers.sibling = self.buffers
            self.buffers = buffers
            self.step_arrays[k] = &buffers.c
            self.group_arrays[k] = &buffers.group.c
        self.order = <int32_t *>calloc(self.num_buffers, sizeof(int32_t))
        self.counts = <int32_t *>calloc(self.max_sequences + 1, sizeof(int32_t))
        self.special = <int32_t *>calloc(self.max_sequences + 1, sizeof(int32_t))
        self.reach = <uint16_t *>calloc(<size_t>self.pool.num_blocks + 1, sizeof(uint16_t))
        if not (self.order and self.counts and self.special and self.reach):
            raise MemoryError(f"no memory for {max_sequences} sequences")
        for k in range(self.num_buffers):
            self.order[k] = k

    def __dealloc__(self):
        free(self.order)
        free(self.counts)
        free(self.special)
        free(self.reach)

    cdef StepBuffers c_buffers(self, int32_t k):
        """Buffers of the k-th oldest open step; beyond those, spare ones."""
        cdef StepBuffers buffers = self.buffers
        while buffers.number != self.order[k]:
            buffers = buffers.sibling
        return buffers

    cdef bint c_has_room(self, StepBuffers buffers, const Demand *demand) noexcept nogil:
        cdef GroupArrays *group = &buffers.group.c
        return (demand.width <= self.pitch and demand.width <= group.width
                and demand.tokens <= buffers.c.room_tokens and demand.tokens <= group.room_slots
                and demand.copies <= group.room_copies and demand.blocks <= group.room_new)

    cdef Demand c_demand(
        self, StepBuffers buffers, const int64_t *handles, const int32_t *counts, int32_t stride, Py_ssize_t n
    ) noexcept nogil:
        """Name the rows, move their ends, write what is simple of the step, count what it takes (see the top)."""
        cdef Demand demand
        # Locals, since the compiler must fear that a store into one array changes the others' addresses.
        cdef StepArrays step = buffers.c
        cdef int64_t *slots = buffers.group.c.slots
        cdef int64_t room = min(step.room_tokens, buffers.group.c.room_slots)
        cdef BlockRecord *records = self.pool.records
        cdef Row *rows = self.rows
        cdef Row *entry
        cdef const int32_t *shown = self.c_shown(buffers.number)
        cdef const int32_t *tables = self.tables
        cdef int32_t *named = self.named
        cdef int32_t *own_counts = self.counts      # the caller's may change under a free-threaded Python
        cdef int32_t num_rows = self.max_sequences, max_length = self.max_length, size = self.block_size
        cdef int32_t shift = self.shift, call, i, row, count, start, need, last, offset, block
        cdef int32_t pitch = self.pitch
        cdef int64_t filled = 0
        demand.blocks = demand.copies = 0
        demand.width = demand.special = demand.rows = demand.withheld = 0
        demand.has_looked = False
        demand.wrong = -1
        demand.too_long = False
        n = self.c_new_call(n)
        call = self.call
        step.qo_indptr[0] = 0
        for i in range(<int32_t>n):
            row = named_row(rows, num_rows, call, handles[i], OPEN_OR_CLOSED)
            named[i] = row
            count = counts[i * stride]
            own_counts[i] = count
            if row < 0:
                demand.wrong = i
                break
            entry = &rows[row]
            start = entry.end
            if count < 0 or count > max_length - start:     # negative: a finalizer has changed the caller's array
                demand.wrong = i
                demand.too_long = True
                break
            entry.end = start + count
            entry.holds += 1
            step.ids[i] = handles[i]
            step.kv_lens[i] = start + count
            step.appended[i] = 0
            last = start >> shift if shift >= 0 else start // size
            offset = start - last * size
            need = last + (offset + count > 0) if count <= size - offset else self.c_blocks_for(start + count)
            if (count == 1 and need <= entry.num_blocks and shown[row] == need and step.held_rows[i] == row
                    and filled < room):
                block = tables[<size_t>row * pitch + last]
                if offset == 0 or (records[block].refcount == 1 and records[block].node < 0 and demand.withheld == 0):
                    slots[filled] = <int64_t>block * size + offset
                    step.positions[filled] = start - entry.pad
                    step.token_seq[filled] = i
                    filled += 1
                    step.qo_indptr[i + 1] = <int32_t>filled
                    continue
            filled += count
            step.qo_indptr[i + 1] = <int32_t>filled
            self.special[demand.special] = i
            demand.special += 1
            self.c_demand_more(buffers, i, &demand)
        demand.rows = <int32_t>n if demand.wrong < 0 else demand.wrong
        demand.tokens = filled
        if demand.withheld > 0:
            self.c_put_back(buffers, &demand)
        demand.blocks += demand.copies
        return demand

    cdef void c_demand_more(self, StepBuffers buffers, int32_t i, Demand *demand) noexcept nogil:
        """Count what a special entry takes.

        Rows that share a last block write one after the other: the last of them alone has it then, and
        writes in place. So each copier's reference is withheld while counting, and what open steps hold of
        sources is as well. Not, however, where a copier stands further on: abandon gives it the block back,
        with its tokens. `reach` says so of each block, whatever the number of copiers.
        """
        cdef int32_t row = self.named[i], start = buffers.c.kv_lens[i] - self.counts[i]
        cdef Row *entry = &self.rows[row]
        cdef BlockRecord *records = self.pool.records
        cdef int32_t need = self.c_blocks_for(entry.end), last = self.c_block_of(start), block
        cdef int32_t offset = start - last * self.block_size
        demand.width = max(demand.width, need)
        if need > entry.num_blocks:
            demand.blocks += need - entry.num_blocks
        if self.counts[i] > 0 and offset > 0:
            if not demand.has_looked:
                self.c_withhold_sources(demand)
            block = self.c_table(row)[last]
            if records[block].node != NO_NODE or records[block].refcount > 1 or self.reach[block] > offset:
                records[block].refcount -= 1
                self.reach[block] = <uint16_t>max(<int32_t>self.reach[block], offset)
                buffers.c.copiers[demand.copies] = i
                demand.copies += 1
                demand.withheld += 1

    cdef void c_withhold_sources(self, Demand *demand) noexcept nogil:
        """Take off what open steps hold of the blocks that they copied, and note how far their copiers stand."""
        cdef int32_t k, i, pair, block, start, offset
        cdef BlockRecord *records = self.pool.records
        cdef const StepArrays *opened
        cdef const GroupArrays *group
        demand.has_looked = True
        for k in range(self.num_open):
            opened = self.step_arrays[self.order[k]]
            group = self.group_arrays[self.order[k]]
            for pair in range(group.num_copies):
                i = opened.copiers[pair]
                start = opened.kv_lens[i] - opened.qo_indptr[i + 1] + opened.qo_indptr[i]
                block = group.copies[2 * pair]
                offset = start - self.c_block_of(start) * self.block_size
                records[block].refcount -= 1
                self.reach[block] = <uint16_t>max(<int32_t>self.reach[block], offset)
                demand.withheld += 1

    cdef void c_put_back(self, StepBuffers buffers, const Demand *demand) noexcept nogil:
        """References as they were; `reach` is 0 everywhere again."""
        cdef int32_t k, i, pair, block
        cdef BlockRecord *records = self.pool.records
        cdef const GroupArrays *group
        for k in range(<int32_t>demand.copies):
            i = buffers.c.copiers[k]
            block = self.c_table(self.named[i])[self.c_block_of(buffers.c.kv_lens[i] - self.counts[i])]
            records[block].refcount += 1
            self.reach[block] = 0
        for k in range(self.num_open):
            group = self.group_arrays[self.order[k]]
            for pair in range(group.num_copies):
                block = group.copies[2 * pair]
                records[block].refcount += 1
                self.reach[block] = 0

    cdef void c_forgo(self, const Demand *demand) noexcept nogil:
        """As if c_demand never was."""
        cdef int32_t i
        for i in range(demand.rows):
            self.rows[self.named[i]].end -= self.counts[i]
            self.rows[self.named[i]].holds -= 1

    cdef void c_fill(self, StepBuffers buffers, const Demand *demand) noexcept nogil:
        """Do what c_demand counted, and write what it left out."""
        cdef int32_t i, k, row, need
        cdef const int32_t *shown = self.c_shown(buffers.number)
        buffers.group.c.num_copies = 0
        buffers.group.c.num_new = 0
        buffers.group.c.num_told = 0
        for k in range(<int32_t>demand.copies):
            self.c_copy_last_block(buffers, buffers.c.copiers[k])
        for k in range(demand.special):
            i = self.special[k]
            row = self.named[i]
            need = self.c_blocks_for(self.rows[row].end)
            if need > self.rows[row].num_blocks:
                self.c_append_new(buffers, i, need)
            if shown[row] != need or buffers.c.held_rows[i] != row:
                self.c_show_table(buffers, i, need)
            self.c_fill_tokens(buffers, i)
        buffers.c.num_sequences = demand.rows
        buffers.c.num_tokens = <int32_t>demand.tokens
        buffers.c.num_shared = -1
        buffers.c.is_tree = False

    cdef void c_append_new(self, StepBuffers buffers, int32_t i, int32_t need) noexcept nogil:
        cdef GroupArrays *group = &buffers.group.c
        cdef int32_t row = self.named[i]
        cdef int32_t have = self.rows[row].num_blocks
        self.c_append_blocks(row, need)
        buffers.c.appended[i] = need - have
        memcpy(group.new_blocks + group.num_new, self.c_table(row) + have, (need - have) * sizeof(int32_t))
        group.num_new += need - have

    cdef void c_fill_tokens(self, StepBuffers buffers, int32_t i) noexcept nogil:
        """Slots, positions and owner of the sequence's new tokens, a block's worth at a time."""
        cdef int32_t first = buffers.c.qo_indptr[i], count = self.counts[i]
        cdef int64_t *slots = buffers.group.c.slots + first
        cdef int64_t *positions = buffers.c.positions + first
        cdef int32_t *token_seq = buffers.c.token_seq + first
        cdef int32_t *table = self.c_table(self.named[i])
        cdef int32_t size = self.block_size
        cdef int32_t start = buffers.c.kv_lens[i] - count, pad = self.rows[self.named[i]].pad
        cdef int32_t logical = self.c_block_of(start)
        cdef int32_t k = 0, stop
        cdef int64_t base
        while k < count:
            stop = min(count, (logical + 1) * size - start)
            base = (<int64_t>table[logical] - logical) * size + start     # slot of token k is base + k
            while k < stop:
                slots[k] = base + k
                positions[k] = start - pad + k
                token_seq[k] = i
                k += 1
            logical += 1

    cdef void c_copy_last_block(self, StepBuffers buffers, int32_t i) noexcept nogil:
        """Give the sequence a block of its own for the position it writes next.

        The one place where a block becomes writable. The source keeps its reference, the step's now.
        """
        cdef GroupArrays *group = &buffers.group.c
        cdef int32_t row = self.named[i]
        cdef int32_t *table = self.c_table(row)
        cdef int32_t j = self.c_block_of(buffers.c.kv_lens[i] - self.counts[i])
        cdef int32_t source = table[j]
        cdef int32_t copy
        cdef size_t size = self.block_size
        self.pool.c_take(table[j - 1] if j > 0 else ZERO_BLOCK, 1, &copy)
        memcpy(self.index.tokens + copy * size, self.index.tokens + source * size, size * sizeof(int32_t))
        table[j] = copy
        self.c_spoil(row, j)
        group.copies[2 * group.num_copies] = source
        group.copies[2 * group.num_copies + 1] = copy
        group.num_copies += 1
        self.num_copies += 1

    cdef void c_show_table(self, StepBuffers buffers, int32_t i, int32_t need) noexcept nogil:
        """Bring place i of the step up to the first `need` entries of the row's table; note what diff has to tell."""
        cdef StepArrays *step = &buffers.c
        cdef GroupArrays *group = &buffers.group.c
        cdef int32_t row = self.named[i]
        cdef int32_t *shown = self.c_shown(buffers.number)
        cdef int32_t *table = self.c_table(row)
        cdef int32_t *place = group.block_tables + <size_t>i * group.width
        cdef int32_t j, first = max(shown[row], 0), before = step.places[row]
        if step.held_rows[i] != row:
            if before >= 0 and step.held_rows[before] == row:
                step.held_rows[before] = -1
            step.held_rows[i] = row
            step.places[row] = i
            first = 0
        if first == 0:
            step.kv_pads[i] = self.rows[row].pad
            group.kv_starts[i] = self.rows[row].pad
        if first < need:
            memcpy(place + first, table + first, (need - first) * sizeof(int32_t))
        for j in range(need, group.widths[i]):
            place[j] = -1
        if self.rows[row].clean < need:
            group.told[2 * group.num_told] = i
            group.told[2 * group.num_told + 1] = self.rows[row].clean
            group.num_told += 1
            self.rows[row].clean = need
        shown[row] = need
        group.widths[i] = need

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
