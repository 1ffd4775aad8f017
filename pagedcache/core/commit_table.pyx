"""Committing a step: its tokens count from then on, and its full blocks can be found."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from pagedcache.core.arguments cimport Int32s, int32s_of, refuse_negative
from pagedcache.core.key_table cimport key_at
from pagedcache.core.prefix_index cimport LOOKAHEAD
from pagedcache.core.records cimport NO_NODE, ZERO_BLOCK
from pagedcache.core.row_table cimport LIVE, Row, SideGroup
from pagedcache.core.step cimport Step
from pagedcache.core.step_buffers cimport GroupArrays, StepArrays, StepBuffers
from pagedcache.core.step_table cimport Deferred, StepTable

from pagedcache.errors import StepOpen


@cython.no_gc_clear
cdef class CommitTable(StepTable):
    """The verb that commits steps; see SequenceTable."""

    def commit(self, Step step not None, tokens, accepted=None):
        """Close the oldest open step: its tokens count, and its full blocks can be found from here on.

        Parameters
        ----------
        step : Step
            The oldest open step.
        tokens : int32 [step.num_tokens] or None
            Token ids in step order. None: they are not known; these sequences publish no more.
        accepted : sequence of int array-like, optional
            Per sequence the indices of the new tokens to keep, ascending, a path of the tree; the others are
            rolled back. The caller has moved K/V as ``step.moves(accepted)`` says. By default all are kept.

        Returns
        -------
        int
            Blocks newly published. A block whose content is published already is given up for that one.

        Raises
        ------
        StepOpen
            Tokens would be dropped of a sequence that a newer step goes on from; nothing was changed.
        PositionReleased
            Some tokens of a sequence would be dropped, but not all, and the table keeps states; nothing was changed.
        StepClosed
            The step is closed, or not the oldest.
        """
        cdef StepBuffers buffers
        cdef Accepted keep
        cdef Int32s given = None
        cdef const int32_t[::1] path
        cdef const int64_t[::1] ends = None
        cdef int32_t published
        keep.path, keep.ends = NULL, NULL
        if tokens is not None:
            given = int32s_of(tokens, "tokens")
            refuse_negative(given, "tokens")
        if accepted is not None:
            path, ends = step.c_accepted(accepted)
        with cython.critical_section(self.pool, step):
            self.c_check_commit(step, given, ends)
            buffers = step.buffers
            self.c_reserve_deferred(buffers)
            if ends is not None:
                keep.path = &path[0] if path.shape[0] > 0 else NULL
                keep.ends = &ends[0]
            published = self.c_commit(buffers, NULL if given is None else given.data, keep)
            self.c_close(step)
        return published

    def check_commit(self, Step step not None, tokens, accepted=None):
        """Raise what `commit` with the same arguments would raise; for whoever moves K/V before it."""
        cdef Int32s given = None
        cdef const int64_t[::1] ends = None
        if tokens is not None:
            given = int32s_of(tokens, "tokens")
            refuse_negative(given, "tokens")
        if accepted is not None:
            ends = step.c_accepted(accepted)[1]
        with cython.critical_section(self.pool):
            self.c_check_commit(step, given, ends)
            self.c_reserve_deferred(step.buffers)

    cdef int c_check_commit(self, Step step, Int32s tokens, const int64_t[::1] ends) except -1:
        cdef StepArrays *arrays
        cdef int32_t i
        self.c_require_open(step, oldest=True)
        arrays = &step.buffers.c
        if tokens is not None and tokens.n != arrays.num_tokens:
            raise ValueError(f"{tokens.n} tokens for a step of {arrays.num_tokens}")
        if ends is None:
            if arrays.is_tree:
                self.c_require_path(step)
            return 0
        if ends.shape[0] != arrays.num_sequences + 1:       # another thread's step has taken this one's buffers
            raise ValueError(f"accepted has {ends.shape[0] - 1} lists for {arrays.num_sequences} sequences")
        for i in range(arrays.num_sequences):
            if (ends[i + 1] - ends[i] < arrays.qo_indptr[i + 1] - arrays.qo_indptr[i]
                    and self.rows[arrays.held_rows[i]].holds > 1 and self.rows[arrays.held_rows[i]].state == LIVE):
                raise StepOpen(
                    f"tokens of handle {arrays.ids[i]} (entry {i}) would be dropped, but a newer open step goes on "
                    "from them: abandon that first"
                )
        if self.num_state_blocks > 0:
            self.c_require_whole(arrays, ends)
        return 0

    cdef int c_require_path(self, Step step) except -1:
        """A tree that is committed whole has to be a path."""
        cdef StepArrays *arrays = &step.buffers.c
        cdef int32_t i, k
        cdef int64_t depth
        for i in range(arrays.num_sequences):
            for k in range(arrays.qo_indptr[i], arrays.qo_indptr[i + 1]):
                depth = arrays.positions[k] - (arrays.kv_lens[i] - arrays.qo_indptr[i + 1] + k - arrays.kv_pads[i])
                if depth != 0:
                    raise ValueError(
                        f"new token {k - arrays.qo_indptr[i]} of sequence {i} was computed for depth "
                        f"{depth + k - arrays.qo_indptr[i]} of a tree: say which tokens are accepted"
                    )
        return 0

    cdef int c_reserve_deferred(self, StepBuffers buffers) except -1:
        """Room for every block that a row of the step, held by newer ones too, may give up."""
        cdef int32_t i, row
        cdef int64_t wanted = self.num_deferred
        cdef Deferred *deferred
        if self.num_open == 1:
            return 0
        for i in range(buffers.c.num_sequences):
            row = buffers.c.held_rows[i]
            wanted += (self.num_sides + 1) * (self.c_block_of(buffers.c.kv_lens[i]) - self.rows[row].num_published)
        if wanted > self.room_deferred:
            deferred = <Deferred *>realloc(self.deferred, wanted * sizeof(Deferred))
            if not deferred:
                raise MemoryError(f"no memory for {wanted} blocks that wait for open steps")
            self.deferred = deferred
            self.room_deferred = <int32_t>wanted
        return 0

    cdef int32_t c_commit(self, StepBuffers buffers, const int32_t *tokens, Accepted accepted) noexcept nogil:
        """Advance the rows, publish; blocks newly published. Tokens NULL: they are not known."""
        cdef StepArrays step = buffers.c
        cdef const int64_t *slots = buffers.group.c.slots
        cdef int32_t *stored = self.index.tokens
        cdef Row *rows = self.rows
        cdef Row *entry
        cdef int32_t i, row, first, count, published = 0
        if buffers.group.c.num_copies > 0 or self.num_sides > 0:
            self.pool.policy.c_tick()
        if self.num_state_blocks > 0:
            self.c_commit_states(&buffers.c, accepted.ends)
        self.c_use_copies(buffers)
        self.c_drop_sources(&buffers.group.c)       # before rows that go: a source continues their blocks
        for i in range(step.num_sequences):
            row = step.held_rows[i]
            entry = &rows[row]
            first = step.qo_indptr[i]
            count = step.qo_indptr[i + 1] - first
            if count > 0 and entry.state == LIVE:
                if accepted.ends != NULL:
                    self.c_accept(row, buffers, i, tokens, accepted)
                elif count == 1 and tokens != NULL:
                    stored[slots[first]] = tokens[first]    # a token's place in the index is its slot
                    entry.position = step.kv_lens[i]
                else:
                    self.c_advance(row, buffers, i, tokens)
                if entry.publishes and self.c_block_of(entry.position) > entry.num_published:
                    published += self.c_publish(row)
                if self.num_sides > 0 and entry.position >= self.slide_at[row]:
                    self.c_slide(row)
            if entry.state == LIVE:
                entry.holds -= 1
            else:
                self.c_finish_row(row)
        return published

    cdef void c_use_copies(self, StepBuffers buffers) noexcept nogil:
        """Blocks that waited to be the copies of partial hits are used, whatever is accepted."""
        cdef GroupArrays *group = &buffers.group.c
        cdef int32_t pair
        while group != NULL:
            for pair in range(group.num_copies):
                self.rows[buffers.c.held_rows[group.copiers[pair]]].partial = 0
            group = group.next

    cdef void c_advance(self, int32_t row, StepBuffers buffers, int32_t i, const int32_t *tokens) noexcept nogil:
        """All new tokens of sequence i count."""
        cdef int32_t first = buffers.c.qo_indptr[i]
        cdef int32_t left = buffers.c.qo_indptr[i + 1] - first, run
        cdef int32_t size = self.block_size
        cdef int32_t logical = self.c_block_of(self.rows[row].position)
        cdef int32_t offset = self.rows[row].position - logical * size
        cdef const int32_t *table = self.c_table(row)
        self.rows[row].position = buffers.c.kv_lens[i]
        if tokens == NULL:
            self.rows[row].publishes = False
            return
        tokens += first
        while left > 0:
            run = min(left, size - offset)
            memcpy(self.index.tokens + <size_t>table[logical] * size + offset, tokens, run * sizeof(int32_t))
            tokens += run
            left -= run
            logical += 1
            offset = 0

    cdef void c_accept(
        self, int32_t row, StepBuffers buffers, int32_t i, const int32_t *tokens, Accepted accepted
    ) noexcept nogil:
        """Only the accepted tokens of sequence i count; blocks that the step appended for others go."""
        cdef Row *entry = &self.rows[row]
        cdef int32_t first = buffers.c.qo_indptr[i], count = buffers.c.qo_indptr[i + 1] - first
        cdef int32_t kept = <int32_t>(accepted.ends[i + 1] - accepted.ends[i]), k
        cdef const int64_t *slots = buffers.group.c.slots + first
        if tokens == NULL:
            entry.publishes = False
        else:
            for k in range(kept):
                self.index.tokens[slots[k]] = tokens[first + accepted.path[accepted.ends[i] + k]]
        entry.position += kept
        if kept < count:            # and so no newer step names the row
            entry.end = entry.position
            self.c_take_back(buffers, i, self.c_blocks_for(entry.end))

    cdef int32_t c_publish(self, int32_t row) noexcept nogil:
        """Publish the row's full blocks; equal content that is published already takes their place."""
        cdef Row *entry = &self.rows[row]
        cdef int32_t *table = self.c_table(row)
        cdef int32_t full = self.c_block_of(entry.position)
        cdef int32_t j, ahead = entry.num_published, block, node, key, side, tagged = 0, named = 0, published = 0
        cdef uint64_t tags[LOOKAHEAD]
        cdef uint64_t tag = self.index.c_tag(entry.node)
        cdef bint told = self.pool.policy.hears_uses
        cdef size_t size = self.block_size
        for j in range(entry.num_published, full):
            while ahead < full and ahead < j + LOOKAHEAD:
                tag = self.index.c_next_tag(
                    tag, self.index.tokens + table[ahead] * size, key_at(entry.keys, &tagged, ahead)
                )
                tags[ahead % LOOKAHEAD] = tag
                ahead += 1
            block = table[j]
            key = key_at(entry.keys, &named, j)
            node = self.index.c_find(entry.node, tags[j % LOOKAHEAD], self.index.tokens + block * size, key)
            if node == NO_NODE:
                node = self.index.c_insert(entry.node, tags[j % LOOKAHEAD], block, key)
                if node == NO_NODE:         # no slot within the probe limit: later blocks would dangle
                    entry.publishes = False
                    break
                self.pool.records[block].node = node
                if told:
                    self.pool.policy.c_publish(block, entry.level)
                for side in range(self.num_sides):
                    self.c_publish_side(side, row, j, node)
                published += 1
            else:
                table[j] = self.index.blocks[node]
                self.pool.c_incref(table[j])
                self.c_give_up(row, block)
                self.c_spoil(row, j)
                if told:
                    self.pool.policy.c_hit(table[j], entry.level)
                for side in range(self.num_sides):
                    self.c_publish_side(side, row, j, node)
                self.num_adopted += 1
            entry.node = node
            entry.num_published += 1
        return published

    cdef void c_publish_side(self, int32_t side, int32_t row, int32_t j, int32_t node) noexcept nogil:
        """Entry j of the row's side table becomes the node's block of that group, or gives way to the one it has."""
        cdef int32_t *table = self.c_side_table(side, row)
        cdef int32_t block = table[j], published = self.index.c_companion(node, side)
        if not self.c_is_held(side, row, j) or block == published:
            return
        if published == ZERO_BLOCK:
            self.index.c_set_companion(node, side, block)
            self.pool.records[block].node = node
            if self.pool.policy.hears_uses:
                self.pool.policy.c_publish(block, self.rows[row].level)
            return
        table[j] = published
        self.pool.c_incref(published)
        self.c_give_up(row, block)
        self.c_spoil_side(side, row, j)
        if self.pool.policy.hears_uses:
            self.pool.policy.c_hit(published, self.rows[row].level)

    cdef void c_slide(self, int32_t row) noexcept nogil:
        """Let go of blocks that no query at the committed position or behind it sees.

        Newer open steps name these blocks too, but their queries stand at that position or behind it. Within what
        admit has promised, the row takes new blocks for them at once, as far as there are any.
        """
        cdef Row *entry = &self.rows[row]
        cdef SideGroup *group
        cdef int32_t *table
        cdef int32_t side, first, j, ahead
        self.slide_at[row] = self.max_length + 1
        for side in range(self.num_sides):
            group = &self.sides[side]
            if group.window == 0:
                continue
            first = self.c_block_of(self.c_lowest_seen(side, entry.position, entry.pad))
            self.slide_at[row] = min(self.slide_at[row], self.c_next_slide(side, first, entry.position, entry.pad))
            if first <= group.first[row]:
                continue
            table = self.c_side_table(side, row)
            for j in range(max(group.first[row], self.c_sinks(side, entry.pad)), first):
                self.pool.c_decref(table[j])
                table[j] = ZERO_BLOCK
            self.c_spoil_side(side, row, group.first[row])
            group.first[row] = first
            ahead = self.c_side_target(side, entry.num_blocks, first, entry.pad) - group.filled[row]
            ahead = min(ahead, self.pool.c_usable())
            if ahead > 0:
                self.pool.c_make_vacant(ahead)
                self.c_append_side(side, row, group.filled[row] + ahead)

    cdef inline void c_publish_rest(self, int32_t row) noexcept nogil:
        """Publish full blocks that are not yet, as after swap_in, before the row is shared.

        Otherwise one of the sharers would publish a block under a parent that the others do not hold.
        """
        if self.rows[row].publishes and self.c_block_of(self.rows[row].position) > self.rows[row].num_published:
            self.rows[row].holds += 1       # c_give_up asks whether newer steps have the row; none has
            self.c_publish(row)
            self.rows[row].holds -= 1

    cdef inline void c_give_up(self, int32_t row, int32_t block) noexcept nogil:
        """Drop the row's reference: at once, or when the steps that may have the block in their tables are closed."""
        if self.rows[row].holds == 1:
            self.pool.c_decref(block)
            return
        self.deferred[self.num_deferred].block = block
        self.deferred[self.num_deferred].step = self.serials[self.num_open - 1]
        self.num_deferred += 1
