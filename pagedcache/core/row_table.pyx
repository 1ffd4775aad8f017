"""Rows of sequences and their block tables: the storage that the verbs of SequenceTable work on.

    handle = generation << 32 | row        a released handle never names the next sequence of its row

    row    [ b0 b1 b2 b3 .  . ]            int32, one contiguous array [max_sequences, pitch]
             |________|  |__ allotted: taken by admit, beyond the position
             published: index nodes, read-only, shared with every other sequence of that prefix

    row    [ b0 b1 b2 B  b4 b3 ]           B: a published block of which only the head is this sequence's (`partial`);
                                           b3 is allotted behind the others, until it becomes the copy of B

Blocks are dropped tail first, always, so that the least recently used list never holds a block
behind one that continues it. Entries beyond num_blocks are not read.
"""

import os

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from pagedcache.core.arguments cimport Int64s
from pagedcache.core.key_table cimport KeyTable
from pagedcache.core.prefix_index cimport PrefixIndex
from pagedcache.core.records cimport NO_NODE, ZERO_BLOCK

from pagedcache.core._checks import require
from pagedcache.core.arguments import bounded_int
from pagedcache.errors import InvalidSequence, OutOfBlocks, StepOpen, SwappedOut

cdef enum:
    FIRST_PITCH = 64            # entries of a table row to begin with; doubled on demand
    MAX_LENGTH = 0x7FFFF800     # positions, and their round-up to whole blocks, must fit int32
    MAX_ROWS = 1 << 24


@cython.no_gc_clear    # __dealloc__ needs the pool
cdef class RowTable:
    """Handles, rows and block tables of up to `max_sequences` sequences; see SequenceTable."""

    def __cinit__(
        self, BlockPool pool not None, block_size, *, max_sequences=256, max_length=None, steps_in_flight=1,
        int tag_bits=64, events=None, fingerprint=b"", max_pinned=None,     # the last three are CacheTable's
        side_groups=(), max_step_tokens=None, state_blocks=()
    ):
        cdef int32_t row, first_generation
        self.block_size = bounded_int(block_size, "block_size", 1, 1024)
        self.shift = int(self.block_size).bit_length() - 1 if self.block_size & (self.block_size - 1) == 0 else -1
        self.max_sequences = bounded_int(max_sequences, "max_sequences", 1, MAX_ROWS)
        holds = min(pool.num_blocks * <int64_t>self.block_size, <int64_t>MAX_LENGTH)
        self.max_length = holds if max_length is None else bounded_int(max_length, "max_length", 1, MAX_LENGTH)
        self.num_buffers = bounded_int(steps_in_flight, "steps_in_flight", 1, MAX_STEPS)
        self.keys = KeyTable()
        self.c_make_sides(side_groups, max_step_tokens)
        self.index = PrefixIndex(
            pool.num_blocks, self.block_size, self.keys, num_sides=self.num_sides, tag_bits=tag_bits
        )
        self.pitch = min(FIRST_PITCH, self.c_widest())
        self.row_memory = calloc(self.max_sequences + <size_t>1, sizeof(Row))
        # Aligned so that a row is one cache line.
        self.rows = <Row *>((<size_t>self.row_memory + sizeof(Row) - 1) // sizeof(Row) * sizeof(Row))
        self.shown = <int32_t *>malloc(<size_t>self.num_buffers * self.max_sequences * sizeof(int32_t))
        self.vacant = <int32_t *>malloc(self.max_sequences * sizeof(int32_t))
        self.named = <int32_t *>malloc((self.max_sequences + 1) * sizeof(int32_t))
        self.tables = <int32_t *>calloc(self.c_table_entries(self.pitch), sizeof(int32_t))
        if not (self.row_memory and self.shown and self.vacant and self.named and self.tables):
            raise MemoryError(f"no memory for the tables of {max_sequences} sequences")
        # A random start keeps handles of one table from naming sequences of another.
        first_generation = int.from_bytes(os.urandom(4), "little") % INT32_MAX + 1
        for row in range(self.max_sequences):
            self.rows[row].generation = first_generation
            self.c_hide(row)
            self.vacant[row] = self.max_sequences - 1 - row
        self.num_vacant = self.max_sequences
        with cython.critical_section(pool):
            pool.c_attach(self.index)
        self.pool = pool

    def __dealloc__(self):
        cdef int32_t row
        if self.pool is not None:       # gets its blocks back
            with cython.critical_section(self.pool):
                for row in range(self.max_sequences):
                    if self.rows[row].state != VACANT:
                        self.c_drop_blocks(row, 0)
                        self.c_close_row(row)
                self.pool.c_detach()
        free(self.row_memory)
        free(self.shown)
        free(self.vacant)
        free(self.named)
        free(self.tables)
        if self.sides != NULL:
            free(self.slide_at)
        free(self.sides)

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: use fork() for a sequence")

    @property
    def nbytes(self):
        """Bytes of bookkeeping, pool and index included, without token ids (4 bytes per pool token)."""
        return (self.pool.nbytes + self.index.nbytes + (self.pool.num_blocks + <size_t>1) * sizeof(uint16_t)
                + self.max_sequences * (sizeof(Row) + (2 + self.num_buffers) * sizeof(int32_t))
                + (self.c_table_entries(self.pitch) + self.c_side_entries()) * sizeof(int32_t))

    cdef int c_make_sides(self, side_groups, max_step_tokens) except -1:
        """The layer groups beside group 0, from (window, sink_tokens, is_chunked) of each; window None: none."""
        cdef int32_t side, size = self.block_size, steps
        cdef int32_t *memory
        rules = [tuple(group) for group in side_groups]
        if not rules:
            return 0
        if any(window is not None for window, _, _ in rules):
            if max_step_tokens is None:
                raise ValueError(
                    "a sliding window needs max_step_tokens, the most new tokens of a sequence in one step"
                )
            self.max_step_tokens = bounded_int(max_step_tokens, "max_step_tokens", 1, MAX_LENGTH)
        self.sides = <SideGroup *>calloc(len(rules), sizeof(SideGroup))
        self.num_sides = <int32_t>len(rules) if self.sides != NULL else 0
        memory = <int32_t *>calloc(self.c_side_entries(), sizeof(int32_t))
        if not (self.sides and memory):
            free(memory)
            self.num_sides = 0
            raise MemoryError(f"no memory for the tables of {self.max_sequences} sequences in {len(rules) + 1} groups")
        self.slide_at = memory
        self.agreed = memory + self.max_sequences
        self.tails = self.agreed + self.num_buffers * <size_t>self.max_sequences
        memory = self.tails + self.num_sides * <size_t>self.max_sequences
        for side in range(self.num_sides):
            window, sink_tokens, is_chunked = rules[side]
            self.sides[side].filled = memory
            self.sides[side].first = memory + self.max_sequences
            self.sides[side].clean = memory + 2 * <size_t>self.max_sequences
            self.sides[side].shown = memory + 3 * <size_t>self.max_sequences
            memory += (3 + self.num_buffers) * <size_t>self.max_sequences
            if window is None:
                continue
            self.sides[side].window = bounded_int(window, "window", 1, MAX_LENGTH)
            self.sides[side].is_chunked = is_chunked
            self.sides[side].sink_tokens = bounded_int(sink_tokens, "sink_tokens", 0, MAX_LENGTH)
            steps = <int32_t>min(<int64_t>self.max_step_tokens * self.num_buffers, <int64_t>MAX_LENGTH)
            self.sides[side].most = <int32_t>min(
                (<int64_t>self.sides[side].window + steps + 2 * size - 2) // size, <int64_t>MAX_LENGTH // size
            )
        return 0

    cdef inline size_t c_side_entries(self) noexcept nogil:
        if self.num_sides == 0:
            return 0
        return (1 + self.num_buffers + self.num_sides * (4 + <size_t>self.num_buffers)) * self.max_sequences

    cdef inline size_t c_table_entries(self, int32_t pitch) noexcept nogil:
        return (self.num_sides + <size_t>1) * self.max_sequences * pitch

    cdef int c_widen(self, int32_t blocks) except -1:
        """Make every table row hold at least `blocks` entries; may raise MemoryError, changing nothing."""
        cdef int32_t row, pitch = self.pitch
        cdef int32_t *tables
        if blocks <= pitch:
            return 0
        pitch = min(max(2 * pitch, blocks), self.c_widest())
        tables = <int32_t *>calloc(self.c_table_entries(pitch), sizeof(int32_t))
        if not tables:
            raise MemoryError(f"no memory for {self.max_sequences} block tables of {pitch} entries")
        for row in range((self.num_sides + 1) * self.max_sequences):
            memcpy(tables + <size_t>row * pitch, self.tables + <size_t>row * self.pitch, self.pitch * sizeof(int32_t))
        free(self.tables)
        self.tables = tables
        self.pitch = pitch
        return 0

    cdef int32_t c_widest(self) noexcept nogil:
        """Most entries of a table row: one more than a sequence has blocks, for the copy of a partial hit."""
        return self.c_blocks_for(self.max_length) + 1

    cdef int32_t c_new_call(self, Py_ssize_t n) noexcept nogil:
        """Begin to name rows; how many of n ids to look at until one must be wrong or named twice."""
        cdef int32_t row
        if self.call == INT32_MAX:
            self.call = 0
            for row in range(self.max_sequences):
                self.rows[row].mark = 0
        self.call += 1
        return <int32_t>min(n, self.max_sequences + <Py_ssize_t>1)

    cdef Py_ssize_t c_name(self, Int64s ids, Naming naming) except -1:
        """Put the rows of `ids` into self.named, or raise for the first that may not be named."""
        cdef int32_t i
        for i in range(self.c_new_call(ids.n)):
            self.named[i] = named_row(self.rows, self.max_sequences, self.call, ids.data[i], naming)
            if self.named[i] < 0:
                self.c_refuse(ids.data[i], i)
        return ids.n

    cdef int c_refuse(self, int64_t handle, int32_t i) except -1:
        """Raise what is wrong with entry i, which could not be named."""
        cdef int32_t row = <int32_t>(<uint32_t>handle)
        if (not 0 <= row < self.max_sequences or self.c_handle(row) != handle
                or self.rows[row].state not in (LIVE, SWAPPED)):
            raise InvalidSequence(
                f"handle {handle} (entry {i}) names no live sequence: it was released, or is another cache's"
            )
        if self.rows[row].mark == self.call:
            raise ValueError(f"handle {handle} is named twice in one call (entry {i})")
        if self.rows[row].state == SWAPPED:
            raise SwappedOut(f"handle {handle} (entry {i}) is swapped out: swap_in first")
        if self.rows[row].holds > 0:
            raise StepOpen(f"handle {handle} (entry {i}) is in an open step: commit or abandon it first")
        raise ValueError(f"handle {handle} (entry {i}) is not swapped out")

    cdef object c_out_of_blocks(self, str verb, int64_t wanted, str remedy):
        """The error for a verb that finds too few usable blocks."""
        cdef int32_t waiting = self.pool.c_waiting()
        fenced = f", {waiting} wait for a fence to retire" if waiting > 0 else ""
        return OutOfBlocks(
            f"{verb} needs {wanted} blocks, {self.pool.c_usable()} of {self.pool.num_blocks} are usable{fenced}; "
            f"{remedy}, or make the pool larger"
        )

    cdef int32_t c_open_row(self) noexcept nogil:
        """A fresh live row; the caller knows that num_vacant > 0."""
        cdef int32_t row, side
        self.num_vacant -= 1
        row = self.vacant[self.num_vacant]
        self.rows[row].state = LIVE
        self.rows[row].pad = 0
        self.c_place(row, 0)
        self.rows[row].num_blocks = 0
        self.rows[row].node = NO_NODE
        self.rows[row].num_published = 0
        self.rows[row].clean = 0
        self.rows[row].holds = 0
        self.rows[row].publishes = True
        self.rows[row].level = 0
        self.rows[row].keys = NULL
        for side in range(self.num_sides):
            self.sides[side].filled[row] = 0
            self.sides[side].first[row] = 0
            self.sides[side].clean[row] = 0
        self.c_hide(row)
        self.num_sequences += 1
        return row

    cdef void c_close_row(self, int32_t row) noexcept nogil:
        """Make the row vacant; its blocks were dropped before."""
        self.keys.c_leave(self.rows[row].keys)
        if self.rows[row].swapped != NULL:
            self.num_swapped -= self.rows[row].swapped.count
        free(self.rows[row].swapped)
        self.rows[row].keys = NULL
        self.rows[row].swapped = NULL
        self.rows[row].state = VACANT
        self.vacant[self.num_vacant] = row
        self.num_vacant += 1

    cdef void c_append_blocks(self, int32_t row, int32_t num_blocks) noexcept nogil:
        """Extend the row to `num_blocks` blocks; the caller has made enough blocks vacant."""
        cdef int32_t *table = self.c_table(row)
        cdef int32_t have = self.rows[row].num_blocks
        self.pool.c_take(table[have - 1] if have > 0 else ZERO_BLOCK, num_blocks - have, table + have)
        self.rows[row].num_blocks = num_blocks

    cdef int32_t c_drop_blocks(self, int32_t row, int32_t keep) noexcept nogil:
        """Drop the row's blocks beyond the first `keep`, tail first; how many became usable."""
        cdef int32_t extra
        if self.rows[row].swapped != NULL:
            self.c_close_gaps(row)
        extra = self.rows[row].num_blocks - keep
        if extra <= 0:
            return 0
        self.rows[row].num_blocks = keep
        self.rows[row].clean = min(self.rows[row].clean, keep)
        self.c_hide(row)                # written anew next time, the entries beyond included
        return self.pool.c_drop(self.c_table(row) + keep, extra)

    cdef void c_close_gaps(self, int32_t row) noexcept nogil:
        """Leave only the blocks that a swapped row still holds, for a row that is about to go."""
        cdef int32_t *table = self.c_table(row)
        cdef int32_t j, kept = 0
        for j in range(self.rows[row].num_blocks):
            if table[j] != ZERO_BLOCK:
                table[kept] = table[j]
                kept += 1
        self.rows[row].num_blocks = kept

    cdef void c_unpublish_row(self, int32_t row, int32_t keep) noexcept nogil:
        """Walk the row's place in the index back to its first `keep` blocks; the index stays as it is."""
        while self.rows[row].num_published > keep:
            self.rows[row].node = self.index.nodes[self.rows[row].node].parent
            self.rows[row].num_published -= 1

    cdef dict c_references(self):
        """Block -> how many table entries name it."""
        cdef int32_t row, j
        cdef dict references = {}
        for row in range(self.max_sequences):
            if self.rows[row].state == VACANT:
                continue
            for j in range(self.rows[row].num_blocks):
                block = self.c_table(row)[j]
                if block != ZERO_BLOCK:
                    references[block] = references.get(block, 0) + 1
        return references

    def check(self):
        """Audit every invariant of table, index and pool; AssertionError names the first broken one.

        O(blocks + index slots + table entries), in Python: for tests and for finding faults, while no other
        thread is in a verb (`KVCache.check` sees to that).
        """
        with cython.critical_section(self.pool):
            self.pool.c_check()
            self.c_check()

    cdef int c_check(self) except -1:
        cdef int32_t row, j, node, block, live = 0
        cdef Row entry
        for row in range(self.max_sequences):
            if self.rows[row].state == VACANT:
                continue
            entry = self.rows[row]
            live += entry.state != DOOMED
            require((entry.state == SWAPPED) == (entry.swapped != NULL), f"row {row} is swapped out, or is not")
            require(0 <= entry.pad <= entry.position <= entry.end <= self.max_length,
                    f"row {row} is at {entry.position}, its end at {entry.end}")
            require(entry.num_blocks <= self.pitch and self.c_blocks_for(entry.position) <= entry.num_blocks,
                    f"row {row} has {entry.num_blocks} blocks for {entry.position} positions")
            require(entry.num_published * self.block_size <= entry.position, f"row {row} publishes an open block")
            node = self.rows[row].node
            for j in range(self.rows[row].num_published - 1, -1, -1):
                require(node != NO_NODE and self.index.blocks[node] == self.c_table(row)[j],
                        f"entry {j} of row {row} is not the published block of its prefix")
                node = self.index.nodes[node].parent
            require(node == NO_NODE, f"row {row} has published {entry.num_published} blocks, its prefix is longer")
            require(entry.partial == 0 or entry.partial != entry.end or self.c_blocks_for(entry.end) < entry.num_blocks,
                    f"row {row} has no block for the copy of what it shares up to {entry.partial}")
            for j in range(self.c_blocks_for(entry.end), entry.num_blocks if entry.state != SWAPPED else 0):
                require(self.c_is_writable(self.c_table(row)[j]), f"allotted block {self.c_table(row)[j]} is shared")
        require(live == self.num_sequences, f"{live} live rows, {self.num_sequences} counted")
        references = self.c_references()
        for block in range(1, self.pool.num_blocks + 1):
            waits = self.pool.fences.c_has(block)
            require(self.pool.records[block].refcount == references.get(block, 0) + self.pool.callers[block] + waits,
                    f"block {block} has {self.pool.records[block].refcount} references for "
                    f"{references.get(block, 0)} entries, {self.pool.callers[block]} of callers, {waits} of a fence")
        return 0
