"""What opening a step takes: one pass over its sequences that counts, and can be taken back.

    c_demand    Most sequences need one slot in a block that they have: their part of the step is written at once.
                The others are counted and listed as special; step_filler does what was counted
    c_forgo     takes the pass back, where the step cannot be had

All of it is nogil and cannot fail; StepTable has the verbs around it.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint16_t
from libc.stdlib cimport calloc, free

from pagedcache.core.records cimport BlockRecord, NO_NODE
from pagedcache.core.row_table cimport OPEN_OR_CLOSED, Row, named_row
from pagedcache.core.state_table cimport StateTable
from pagedcache.core.step_buffers cimport GroupArrays, StepArrays, StepBuffers


@cython.no_gc_clear
cdef class DemandTable(StateTable):
    """Rows, and the buffers of the steps that name them; see StepTable."""

    def __cinit__(
        self, pool, block_size, *, max_sequences=256, max_length=None, steps_in_flight=1, int tag_bits=64, events=None,
        fingerprint=b"", max_pinned=None, side_groups=(), max_step_tokens=None, state_blocks=()
    ):
        cdef int32_t k
        cdef StepBuffers buffers
        for k in range(self.num_buffers - 1, -1, -1):
            buffers = StepBuffers(self.max_sequences, k, self.num_sides + 1, self.state_groups)
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
        cdef int32_t pitch = self.pitch, num_sides = self.num_sides, most = self.max_step_tokens
        cdef int64_t filled = 0
        cdef GroupArrays *group = &buffers.group.c
        while group != NULL:
            group.num_copiers = 0
            group = group.next
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
            # Negative where a finalizer has changed the caller's array.
            if count < 0 or count > max_length - start or (most > 0 and count > most):
                demand.wrong = i
                demand.too_long = True
                break
            entry.end = start + count
            entry.holds += 1
            step.ids[i] = handles[i]
            step.kv_lens[i] = start + count
            last = start >> shift if shift >= 0 else start // size
            offset = start - last * size
            need = last + (offset + count > 0) if count <= size - offset else self.c_blocks_for(start + count)
            if (count == 1 and need <= entry.num_blocks and shown[row] == need and step.held_rows[i] == row
                    and filled < room):
                block = tables[<size_t>row * pitch + last]
                if ((offset == 0 or (
                        records[block].refcount == 1 and records[block].node < 0 and demand.withheld == 0))
                        and (num_sides == 0 or self.c_is_simple(buffers, row, last, offset, filled))):
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
        if self.num_state_blocks > 0:
            demand.blocks += self.c_demand_states(demand.rows)
        if demand.withheld > 0:
            self.c_put_back(buffers, &demand)
        return demand

    cdef bint c_is_simple(
        self, StepBuffers buffers, int32_t row, int32_t last, int32_t offset, int64_t token
    ) noexcept nogil:
        """Whether side groups show the block at hand too; then the token's slots there.

        Group 0's was asked whether it may be written. Whoever shares a side group's last block shares group 0's.
        """
        cdef GroupArrays *group = buffers.group.c.next
        cdef const int32_t *tail = self.tails + <size_t>row * self.num_sides
        cdef int32_t size = self.block_size
        if self.agreed[buffers.number * self.max_sequences + row] != last + 1:
            return False
        while group != NULL:
            group.slots[token] = <int64_t>tail[0] * size + offset
            tail += 1
            group = group.next
        return True

    cdef void c_demand_more(self, StepBuffers buffers, int32_t i, Demand *demand) noexcept nogil:
        """Count what a special entry takes.

        Rows that share a last block write one after the other: the last of them alone has it then, and
        writes in place. So each copier's reference is withheld while counting, and what open steps hold of
        sources is as well. Not, however, where a copier stands further on: abandon gives it the block back,
        with its tokens. `reach` says so of each block, whatever the number of copiers.
        """
        cdef int32_t row = self.named[i], start = buffers.c.kv_lens[i] - self.counts[i]
        cdef int32_t need = self.c_blocks_for(self.rows[row].end), last = self.c_block_of(start), side
        cdef int32_t offset = start - last * self.block_size
        cdef GroupArrays *group = buffers.group.c.next
        demand.width = max(demand.width, need)
        if self.counts[i] > 0 and offset > 0:
            if not demand.has_looked:
                self.c_withhold_sources(demand)
        else:
            last = -1       # begins no block, or writes nothing
        self.c_demand_blocks(&buffers.group.c, i, self.rows[row].num_blocks, self.c_table(row), last, demand)
        for side in range(self.num_sides):
            self.c_demand_blocks(group, i, self.sides[side].filled[row], self.c_side_table(side, row), last, demand)
            group = group.next

    cdef void c_demand_blocks(
        self, GroupArrays *group, int32_t i, int32_t have, const int32_t *table, int32_t last, Demand *demand
    ) noexcept nogil:
        """Count what a group takes for entry i: blocks beyond those that it has, and a copy of the `last` one.

        That is the one in whose middle the entry goes on, or -1; it is copied where it may not be written.
        """
        cdef Row *entry = &self.rows[self.named[i]]
        cdef int32_t need = self.c_blocks_for(entry.end), start = entry.end - self.counts[i], offset, block
        cdef BlockRecord *record
        if last >= 0:
            block = table[last]
            record = &self.pool.records[block]
            offset = start - last * self.block_size
            if record.node != NO_NODE or record.refcount > 1 or self.reach[block] > offset:
                record.refcount -= 1
                self.reach[block] = <uint16_t>max(<int32_t>self.reach[block], offset)
                group.copiers[group.num_copiers] = i
                group.num_copiers += 1
                demand.copies += 1
                demand.withheld += 1
                if entry.partial == start:      # the copy is the row's last block
                    have -= 1
                else:
                    demand.blocks += 1
        demand.blocks += max(0, need - have)

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
            while group != NULL:
                for pair in range(group.num_copies):
                    i = group.copiers[pair]
                    start = opened.kv_lens[i] - opened.qo_indptr[i + 1] + opened.qo_indptr[i]
                    block = group.copies[2 * pair]
                    offset = start - self.c_block_of(start) * self.block_size
                    records[block].refcount -= 1
                    self.reach[block] = <uint16_t>max(<int32_t>self.reach[block], offset)
                    demand.withheld += 1
                group = group.next

    cdef void c_put_back(self, StepBuffers buffers, const Demand *demand) noexcept nogil:
        """References as they were; `reach` is 0 everywhere again."""
        cdef int32_t k, i, pair, block, side = -1
        cdef BlockRecord *records = self.pool.records
        cdef const GroupArrays *group = &buffers.group.c
        while group != NULL:
            for k in range(group.num_copiers):
                i = group.copiers[k]
                block = self.c_side_table(side, self.named[i])[
                    self.c_block_of(buffers.c.kv_lens[i] - self.counts[i])
                ]
                records[block].refcount += 1
                self.reach[block] = 0
            side += 1
            group = group.next
        for k in range(self.num_open):
            group = self.group_arrays[self.order[k]]
            while group != NULL:
                for pair in range(group.num_copies):
                    block = group.copies[2 * pair]
                    records[block].refcount += 1
                    self.reach[block] = 0
                group = group.next

    cdef int64_t c_demand_states(self, int32_t rows) noexcept nogil:
        """Blocks for the states after the step, beyond those that the named rows have spare."""
        cdef int64_t blocks = 0
        cdef int32_t i
        for i in range(rows):
            if self.counts[i] > 0 and self.num_spare[self.named[i]] == 0:
                blocks += self.num_state_blocks
        return blocks

    cdef void c_forgo(self, const Demand *demand) noexcept nogil:
        """As if c_demand never was."""
        cdef int32_t i
        for i in range(demand.rows):
            self.rows[self.named[i]].end -= self.counts[i]
            self.rows[self.named[i]].holds -= 1
