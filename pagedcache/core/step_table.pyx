"""One step: extend opens it, commit or abandon closes it.

A verb first checks and counts, raising before anything is touched; then it does, in a nogil part that
cannot fail. No Python object is made between the two, or a finalizer could call a verb in the middle.

An open step holds what it gave up until it closes: the source of a copy keeps its reference, which from
then on belongs to the step, and a row released meanwhile stays, doomed. So abandon can put everything
back, and work still running on the step's arrays reads no reused block.
"""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from pagedcache.core.arguments cimport counts_of, handles_of, int32s_of, refuse_negative
from pagedcache.core.records cimport BlockRecord, ZERO_BLOCK
from pagedcache.core.row_table cimport DOOMED, LIVE, Row, RowTable, named_row
from pagedcache.core.step cimport GroupArrays, Step, StepArrays, StepBuffers

from pagedcache.core.arguments import later
from pagedcache.errors import OutOfBlocks, StepBusy, StepClosed


@cython.no_gc_clear
cdef class StepTable(RowTable):
    """The verbs of one step over a RowTable; see SequenceTable."""

    def __cinit__(self, pool, block_size, *, max_sequences=256, max_length=None, int tag_bits=64):
        self.buffers = StepBuffers(self.max_sequences)
        self.copiers = <int32_t *>calloc(self.max_sequences, sizeof(int32_t))
        self.counts = <int32_t *>calloc(self.max_sequences, sizeof(int32_t))
        if not self.copiers or not self.counts:
            raise MemoryError(f"no memory for {max_sequences} sequences")

    def __dealloc__(self):
        cdef int32_t pair
        # Where RowTable refused its arguments, __cinit__ above never ran and step is not even None.
        if self.copiers != NULL and self.step is not None:
            for pair in range(self.buffers.group.c.num_copies):
                self.pool.c_decref(self.buffers.group.c.copies[2 * pair])
        free(self.copiers)
        free(self.counts)

    @property
    def open_steps(self):
        """The steps that are neither committed nor abandoned: a tuple of none or one."""
        return () if self.step is None else (self.step,)

    def can_extend(self, ids, counts, *, depths=None, cascade=False):
        """Whether `extend` with the same arguments would find enough blocks now; other errors alike."""
        cdef Demand demand
        if depths is not None or cascade:
            raise later("extend(depths=, cascade=)")
        cdef const int64_t[::1] handles = handles_of(ids)
        cdef const int32_t[::1] new = counts_of(counts, handles.shape[0], "counts")
        with cython.critical_section(self.pool):
            demand = self.c_checked_demand(handles, new)
            return demand.blocks <= self.pool.c_usable()

    def extend(self, ids, counts, *, depths=None, cascade=False):
        """Slots for new tokens of each sequence: opens a step.

        Allocates what lies beyond the blocks a row has, and replaces a shared or published last block
        by a fresh one, named in ``step.copies``. Nothing is matchable before `commit`.

        Parameters
        ----------
        ids : int64 [n]
            Handles, each once.
        counts : int32 [n] or int
            New tokens of each sequence, 0 or more.

        Returns
        -------
        Step

        Raises
        ------
        OutOfBlocks
            Too few usable blocks (`can_extend` asks with the same code).
        StepBusy
            A step is open.
        ValueError
            A sequence would grow beyond max_length.
        """
        cdef Demand demand
        cdef Step step
        if depths is not None or cascade:
            raise later("extend(depths=, cascade=)")
        cdef const int64_t[::1] handles = handles_of(ids)
        cdef const int32_t[::1] new = counts_of(counts, handles.shape[0], "counts")
        with cython.critical_section(self.pool):
            # Any allocation may run a finalizer, and that may call a verb: so the step is made before the
            # rows are named, and what had to grow is followed by a fresh count.
            step = Step.__new__(Step)
            step.block_size = self.block_size
            step.owner = self
            step.buffers = self.buffers
            demand = self.c_payable_demand(handles, new)
            while not self.c_has_room(&demand):
                self.c_widen(demand.width)
                self.buffers.c_fit(demand.width, demand.tokens, demand.copies, demand.blocks, demand.shown)
                demand = self.c_payable_demand(handles, new)
            self.pool.c_make_vacant(<int32_t>demand.blocks)
            self.c_fill(&handles[0] if demand.rows else NULL, &demand)
            self.pool.c_note_peak()
            self.step = step
            return step

    cdef bint c_has_room(self, const Demand *demand) noexcept nogil:
        cdef GroupArrays *group = &self.buffers.group.c
        return (demand.width <= self.pitch and demand.width <= group.width
                and demand.tokens <= self.buffers.c.room_tokens and demand.tokens <= group.room_slots
                and demand.copies <= group.room_copies and demand.blocks <= group.room_new
                and demand.shown <= group.room_diff)

    cdef Demand c_payable_demand(self, const int64_t[::1] handles, const int32_t[::1] counts) except *:
        """c_checked_demand, or OutOfBlocks."""
        cdef Demand demand = self.c_checked_demand(handles, counts)
        if demand.blocks > self.pool.c_usable():
            raise OutOfBlocks(
                f"extend needs {demand.blocks} blocks, {self.pool.c_usable()} of {self.pool.num_blocks} are usable; "
                "release or truncate sequences, or make the pool larger"
            )
        return demand

    cdef Demand c_checked_demand(self, const int64_t[::1] handles, const int32_t[::1] counts) except *:
        """c_demand, or the error for what is wrong with an entry."""
        cdef Demand demand
        cdef int32_t row, count
        cdef Py_ssize_t n = handles.shape[0]
        if self.step is not None:
            raise StepBusy("a step is open (steps_in_flight is 1): commit or abandon it first; open_steps has it")
        demand = self.c_demand(&handles[0] if n else NULL, &counts[0] if n else NULL, counts.shape[0] == n, n)
        if demand.wrong >= 0:
            if not demand.too_long:
                self.c_refuse(handles[demand.wrong], demand.wrong)
            row = self.named[demand.wrong]
            count = counts[demand.wrong if counts.shape[0] == n else 0]
            raise ValueError(
                f"{count} tokens at position {self.rows[row].position} (entry {demand.wrong}) make "
                f"{<int64_t>self.rows[row].position + count}, beyond max_length {self.max_length}"
            )
        if demand.tokens > INT32_MAX or demand.shown > INT32_MAX // 3:
            raise ValueError(f"{demand.tokens} tokens, {demand.shown} table entries: too many for one int32 step")
        return demand

    cdef Demand c_demand(
        self, const int64_t *handles, const int32_t *counts, int32_t stride, Py_ssize_t n
    ) noexcept nogil:
        """Name the rows; what extending them takes; whose last blocks must be copied (self.copiers).

        Rows that share a last block write one after the other: the last of them alone has it then, and
        writes in place. So each copier's reference is taken off while counting, and put back at the end.
        Not, however, where a copier stands further on: abandon gives it the block back, with its tokens.
        """
        cdef Demand demand
        cdef BlockRecord *records = self.pool.records
        cdef Row *rows = self.rows
        cdef Row *entry
        cdef int32_t *named = self.named
        cdef int32_t num_rows = self.max_sequences, max_length = self.max_length, size = self.block_size, call
        cdef int32_t i, row, count, need, last, block
        demand.blocks = demand.copies = demand.tokens = demand.shown = 0
        demand.width = 0
        demand.wrong = -1
        demand.too_long = False
        demand.rows = self.c_new_call(n)
        call = self.call
        for i in range(demand.rows):
            row = named_row(rows, num_rows, call, handles[i], True)
            named[i] = row
            if row < 0:
                demand.wrong = i
                break
            entry = &rows[row]
            count = counts[i * stride]
            self.counts[i] = count      # the caller's array may change under a free-threaded Python
            if count > max_length - entry.position:
                demand.wrong = i
                demand.too_long = True
                break
            need = self.c_blocks_for(entry.position + count)
            last = self.c_block_of(entry.position)
            demand.tokens += count
            demand.shown += need - min(entry.clean, last)
            demand.width = max(demand.width, need)
            if need > entry.num_blocks:
                demand.blocks += need - entry.num_blocks
            if count > 0 and last * size != entry.position:
                block = self.c_table(row)[last]
                if (not self.c_is_writable(block)
                        or self.c_is_copied_beyond(block, entry.position, <int32_t>demand.copies)):
                    records[block].refcount -= 1
                    self.copiers[demand.copies] = i
                    demand.copies += 1
        for i in range(demand.copies):
            row = named[self.copiers[i]]
            records[self.c_table(row)[self.c_block_of(rows[row].position)]].refcount += 1
        demand.blocks += demand.copies
        return demand

    cdef bint c_is_copied_beyond(self, int32_t block, int32_t position, int32_t copies) noexcept nogil:
        """Whether one of the copiers so far has more of this block than what lies before `position`."""
        cdef int32_t k, row
        for k in range(copies):
            row = self.named[self.copiers[k]]
            if (self.rows[row].position > position
                    and self.c_table(row)[self.c_block_of(self.rows[row].position)] == block):
                return True
        return False

    cdef void c_fill(self, const int64_t *handles, const Demand *demand) noexcept nogil:
        """Do what c_demand counted, and write every array of the step."""
        cdef GroupArrays *group = &self.buffers.group.c
        # Locals, since the compiler must fear that a store into one array changes the others' addresses.
        cdef StepArrays step = self.buffers.c
        cdef int64_t *slots = group.slots
        cdef int32_t *named = self.named
        cdef Row *rows = self.rows
        cdef Row *entry
        cdef int32_t i, row, count, position, need, last, filled = 0
        cdef int32_t *counts = self.counts
        cdef int32_t size = self.block_size
        group.num_copies = group.num_new = group.num_diff = 0
        for i in range(<int32_t>demand.copies):
            self.c_copy_last_block(named[self.copiers[i]])
        step.qo_indptr[0] = 0
        for i in range(demand.rows):
            row = named[i]
            count = counts[i]
            entry = &rows[row]
            position = entry.position
            entry.in_step = True
            step.ids[i] = handles[i]
            step.kv_lens[i] = position + count
            need = self.c_blocks_for(position + count)
            if need > entry.num_blocks:
                self.c_append_new(row, need)
            if entry.clean != need or entry.place != i or step.held_rows[i] != row:
                self.c_show_table(row, i, need)
            if count == 1:
                last = self.c_block_of(position)
                slots[filled] = <int64_t>self.c_table(row)[last] * size + (position - last * size)
                step.positions[filled] = position - entry.pad
                step.token_seq[filled] = i
            else:
                self.c_fill_tokens(row, i, filled, count)
            filled += count
            step.qo_indptr[i + 1] = filled
        self.buffers.c.num_sequences = demand.rows
        self.buffers.c.num_tokens = filled

    cdef void c_append_new(self, int32_t row, int32_t need) noexcept nogil:
        cdef GroupArrays *group = &self.buffers.group.c
        cdef int32_t have = self.rows[row].num_blocks
        self.c_append_blocks(row, need)
        self.rows[row].num_new = need - have
        memcpy(group.new_blocks + group.num_new, self.c_table(row) + have, (need - have) * sizeof(int32_t))
        group.num_new += need - have

    cdef inline void c_fill_tokens(self, int32_t row, int32_t i, int32_t first, int32_t count) noexcept nogil:
        """Slots, positions and owner of the row's new tokens, a block's worth at a time."""
        cdef int64_t *slots = self.buffers.group.c.slots + first
        cdef int64_t *positions = self.buffers.c.positions + first
        cdef int32_t *token_seq = self.buffers.c.token_seq + first
        cdef int32_t *table = self.c_table(row)
        cdef int32_t size = self.block_size
        cdef int32_t position = self.rows[row].position, pad = self.rows[row].pad
        cdef int32_t logical = self.c_block_of(position)
        cdef int32_t k = 0, stop
        cdef int64_t base
        while k < count:
            stop = min(count, (logical + 1) * size - position)
            base = (<int64_t>table[logical] - logical) * size + position     # slot of token k is base + k
            while k < stop:
                slots[k] = base + k
                positions[k] = position - pad + k
                token_seq[k] = i
                k += 1
            logical += 1

    cdef void c_copy_last_block(self, int32_t row) noexcept nogil:
        """Give the row a block of its own for the position it writes next.

        The one place where a block becomes writable. The source keeps its reference, the step's now.
        """
        cdef GroupArrays *group = &self.buffers.group.c
        cdef int32_t *table = self.c_table(row)
        cdef int32_t j = self.c_block_of(self.rows[row].position)
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

    cdef void c_show_table(self, int32_t row, int32_t i, int32_t need) noexcept nogil:
        """Bring place i of the step, and the diff, up to the first `need` entries of the row's table."""
        cdef StepArrays *step = &self.buffers.c
        cdef GroupArrays *group = &self.buffers.group.c
        cdef Row *entry = &self.rows[row]
        cdef int32_t *table = self.c_table(row)
        cdef int32_t *place = group.block_tables + <size_t>i * group.width
        cdef int32_t j, first = entry.clean
        if entry.place != i or step.held_rows[i] != row:
            step.kv_pads[i] = entry.pad
            group.kv_starts[i] = entry.pad
            first = 0
        for j in range(first, need):
            place[j] = table[j]
        for j in range(need, group.shown[i]):
            place[j] = -1
        for j in range(entry.clean, need):
            group.diff[3 * group.num_diff] = row
            group.diff[3 * group.num_diff + 1] = j
            group.diff[3 * group.num_diff + 2] = table[j]
            group.num_diff += 1
        entry.clean = need
        entry.place = i
        step.held_rows[i] = row
        group.shown[i] = need

    def commit(self, Step step not None, tokens, accepted=None):
        """Close the step: its tokens count, and its full blocks can be found from here on.

        Parameters
        ----------
        step : Step
            The open step.
        tokens : int32 [step.num_tokens] or None
            Token ids in step order. None: they are not known; these sequences publish no more.

        Returns
        -------
        int
            Blocks newly published. A block whose content is published already is given up for that one.
        """
        cdef StepArrays *arrays = &self.buffers.c
        cdef int32_t *copies = self.buffers.group.c.copies
        cdef int32_t i, row, count, published = 0
        cdef const int32_t[::1] given
        if accepted is not None:
            raise later("commit(accepted=)")
        if tokens is not None:
            given = int32s_of(tokens, "tokens")
            refuse_negative(given, "tokens")
        with cython.critical_section(self.pool):
            self.c_require_current(step)
            if tokens is not None and given.shape[0] != arrays.num_tokens:
                raise ValueError(f"{given.shape[0]} tokens for a step of {arrays.num_tokens}")
            for i in range(arrays.num_sequences):
                row = arrays.held_rows[i]
                if self.rows[row].state == LIVE and arrays.kv_lens[i] > self.rows[row].position:
                    if tokens is None:
                        self.rows[row].publishes = False
                    elif self.rows[row].publishes:
                        count = arrays.kv_lens[i] - self.rows[row].position
                        self.c_store_tokens(row, &given[arrays.qo_indptr[i]], count)
                    self.rows[row].position = arrays.kv_lens[i]
                    published += self.c_publish(row)
            for i in range(self.buffers.group.c.num_copies):
                self.pool.c_decref(copies[2 * i])
            self.c_close()
        return published

    def abandon(self, Step step not None):
        """Close the step as if it never was; only evictions stay."""
        cdef StepArrays *arrays = &self.buffers.c
        cdef int32_t *copies = self.buffers.group.c.copies
        cdef int32_t i, row, pair, j
        with cython.critical_section(self.pool):
            self.c_require_current(step)
            for i in range(arrays.num_sequences - 1, -1, -1):
                row = arrays.held_rows[i]
                self.rows[row].clean = 0    # whoever replays the diffs may never have seen this step's
                self.rows[row].place = -1
                if self.rows[row].num_new > 0:
                    self.c_drop_blocks(row, self.rows[row].num_blocks - self.rows[row].num_new)
            for pair in range(self.buffers.group.c.num_copies - 1, -1, -1):
                row = arrays.held_rows[self.copiers[pair]]
                j = self.c_block_of(self.rows[row].position)
                self.pool.c_decref(copies[2 * pair + 1])
                self.c_table(row)[j] = copies[2 * pair]
                self.num_copies -= 1
            self.c_close()

    cdef int c_require_current(self, Step step) except -1:
        if step.owner is not self:
            raise ValueError("the step belongs to another table, or was made from arrays")
        if step is not self.step:
            raise StepClosed("this step was committed or abandoned before")
        return 0

    cdef int c_close(self) except -1:
        """Shut the step's view, and let go of the rows that were released meanwhile."""
        cdef int32_t i
        for i in range(self.buffers.c.num_sequences):
            self.c_finish_row(i)
        with cython.critical_section(self.step):
            self.step.buffers = None
        self.step = None
        return 0

    cdef void c_finish_row(self, int32_t i) noexcept nogil:
        cdef int32_t row = self.buffers.c.held_rows[i]
        self.rows[row].in_step = False
        self.rows[row].num_new = 0
        if self.rows[row].state == DOOMED:
            self.c_drop_blocks(row, 0)
            self.c_close_row(row)

    cdef dict c_references(self):
        """Also what the open step holds: one reference to the source of each copy."""
        cdef dict references = RowTable.c_references(self)
        cdef int32_t pair
        if self.step is not None:
            for pair in range(self.buffers.group.c.num_copies):
                source = self.buffers.group.c.copies[2 * pair]
                references[source] = references.get(source, 0) + 1
        return references
