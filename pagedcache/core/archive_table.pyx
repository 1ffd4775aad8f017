"""What sequences and the prefix cache hold, told so that it can be kept elsewhere; and sequences made of that again.

Bytes are moved by whoever calls, as with swapping: a sequence from elsewhere begins as one that is swapped out, and
`begin_swap_in` and `swap_in` bring its blocks. What the prefix cache has of it is shared from the start.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy, memset

from pagedcache.core.arguments cimport Int32s, Int64s, handles_of, new_int32s, token_lists
from pagedcache.core.key_table cimport RowKeys, RowKeysHolder
from pagedcache.core.prompt_table cimport key_starts
from pagedcache.core.records cimport NO_NODE, ZERO_BLOCK
from pagedcache.core.row_table cimport CLOSED, SWAPPED, Row, SwappedBlocks
from pagedcache.core.share_table cimport ShareTable

from pagedcache.core._contents import Published, SequenceContents, keys_of, namespace_of
from pagedcache.core.arguments import bounded_int
from pagedcache.errors import OutOfSequences


@cython.no_gc_clear
cdef class ArchiveTable(ShareTable):
    """The verbs for whoever keeps sequences or the prefix cache elsewhere; see SequenceTable."""

    # -- telling ----------------------------------------------------------------------------------

    def contents(self, handle):
        """Return what a sequence of no open step is, besides its blocks: a `SequenceContents`.

        Raises
        ------
        InvalidSequence, SwappedOut, StepOpen
            The handle names no live sequence, one that is swapped out, or one in an open step.
        """
        cdef Int64s handles = handles_of([handle])
        cdef int32_t row, position, pad, level, k, logical, run, settled = 0
        cdef int32_t *ids
        cdef bint known
        cdef size_t size = self.block_size
        cdef RowKeys *keys
        tokens = new_int32s(self.max_length, &ids)
        starts = []
        border = None
        with cython.critical_section(self.pool):
            entries = list(self.keys.entries)       # before the row is looked at: this may run a finalizer
            self.c_name(handles, CLOSED)
            row = self.named[0]
            position, pad, level = self.rows[row].position, self.rows[row].pad, self.rows[row].level
            known = self.rows[row].publishes
            if known:
                for logical in range(self.c_blocks_for(position)):
                    run = <int32_t>min(<int64_t>size, position - logical * <int64_t>size)
                    memcpy(ids + logical * size, self.index.tokens + self.c_table(row)[logical] * size, run * 4)
            keys = self.keys.c_share(self.rows[row].keys)
            if keys != NULL:        # shared, since tuples run finalizers too
                settled = keys.settled
                border = entries[keys.border]
                for k in range(keys.count):
                    starts.append((keys.blocks[k], entries[keys.keys[k]][0]))
                self.keys.c_leave(keys)
        return SequenceContents(
            tokens[:position].copy() if known else None, position, pad, level, namespace_of(border),
            keys_of(starts, self.block_size), settled
        )

    def published(self):
        """Return all that the prefix cache holds, what a block continues before it: a `Published`."""
        cdef int32_t block, node, depth, n = 0, side, groups = self.num_sides + 1
        cdef int32_t *blocks
        cdef int32_t *parents
        cdef int32_t *ids
        cdef int32_t *keys
        cdef int32_t *path
        cdef int32_t *places
        cdef size_t size = self.block_size
        found = new_int32s(<Py_ssize_t>self.pool.num_blocks * groups, &blocks)
        before = new_int32s(self.pool.num_blocks, &parents)
        tokens = new_int32s(<Py_ssize_t>self.pool.num_blocks * self.block_size, &ids)
        numbers = new_int32s(self.pool.num_blocks, &keys)
        scratch = new_int32s(self.pool.num_blocks, &path)
        listed = new_int32s(self.pool.num_blocks, &places)      # by node: where it is in the list, or -1
        memset(places, 0xFF, self.pool.num_blocks * sizeof(int32_t))
        with cython.critical_section(self.pool):
            entries = list(self.keys.entries)       # before anything is looked at: this may run a finalizer
            for block in range(1, self.pool.num_blocks + 1):
                node = self.pool.records[block].node
                depth = 0
                while node != NO_NODE and places[node] < 0:
                    places[node] = 0        # its place follows, parents first
                    path[depth] = node
                    depth += 1
                    node = self.index.nodes[node].parent
                for depth in range(depth - 1, -1, -1):
                    node = path[depth]
                    places[node] = n
                    parents[n] = NO_NODE
                    if self.index.nodes[node].parent != NO_NODE:
                        parents[n] = places[self.index.nodes[node].parent]
                    blocks[<Py_ssize_t>n * groups] = self.index.blocks[node]
                    for side in range(self.num_sides):
                        blocks[<Py_ssize_t>n * groups + side + 1] = self.index.c_companion(node, side)
                    memcpy(ids + n * size, self.index.tokens + self.index.blocks[node] * size, size * sizeof(int32_t))
                    keys[n] = self.index.c_key(node)
                    n += 1
        del scratch, listed
        return Published(
            found.reshape(-1, groups)[:n].copy(), before[:n].copy(), tokens.reshape(-1, self.block_size)[:n].copy(),
            numbers[:n].copy(), entries
        )

    def published_blocks(self, prompt, *, namespace=None, keys=None):
        """Return the blocks of a prompt that are published, from the first one on, in all layer groups.

        Parameters
        ----------
        prompt : int array-like
            Token ids.
        namespace, keys
            As in `admit`, for this prompt alone.

        Returns
        -------
        int32 [n, groups]
            Of each full block the one of each layer group; 0 where a side group has none.
        """
        cdef list given = token_lists([prompt], "prompt"), holders
        cdef list starts = key_starts(namespace, None if keys is None else [keys], self.block_size, given)
        cdef Int32s tokens = given[0]
        cdef int32_t full = <int32_t>min(tokens.n // self.block_size, <Py_ssize_t>self.pool.num_blocks)
        cdef int32_t groups = self.num_sides + 1, n, node, j, side
        cdef int32_t *matched
        cdef int32_t *blocks
        scratch = new_int32s(full, &matched)
        found = new_int32s(<Py_ssize_t>full * groups, &blocks)
        with cython.critical_section(self.pool):
            holders = self.c_holders(starts, namespace)
            n = self.index.c_match(
                tokens.data, full, NULL if holders is None else (<RowKeysHolder>holders[0]).keys, matched, &node
            )
            for j in range(n):
                blocks[<Py_ssize_t>j * groups] = matched[j]
                for side in range(self.num_sides):
                    blocks[<Py_ssize_t>j * groups + side + 1] = self.index.c_companion(
                        self.pool.records[matched[j]].node, side
                    )
            holders = None      # they count users, which needs the section
        del scratch
        return found.reshape(full, groups)[:n].copy()

    # -- making -----------------------------------------------------------------------------------

    def admit_swapped(
        self, position, tokens, *, pad=0, namespace=None, keys=None, priority=0, like=None, shared=0
    ):
        """Make a sequence whose blocks are elsewhere, as `swap_out` would have left it.

        What the prefix cache has of it, up to the last full block, is shared from the start. `begin_swap_in` names the
        blocks that want their bytes, entry after entry and in each group after group; `swap_in` makes it live,
        `publish` has its full blocks found.

        Parameters
        ----------
        position : int
            Where it stands, its pad counted.
        tokens : int array-like [position], or None
            None: they are not known, or padded; the sequence publishes nothing and shares nothing.
        pad : int
            Leading positions that are never visible; without tokens only.
        namespace, keys, priority
            As in `admit`, for this sequence alone.
        like, shared : int
            Without tokens: handle of a sequence with the same pad, and how many leading blocks are its as well, as
            after a fork.

        Returns
        -------
        int
            The handle.

        Raises
        ------
        OutOfSequences
            All rows are in use.
        InvalidSequence, SwappedOut, StepOpen
            `like` names no live sequence, one that is swapped out, or one in an open step.
        ValueError
            The position is beyond max_length or the pool, or does not fit pad and tokens; or fewer blocks can be
            shared. Whatever is raised, nothing was changed.
        """
        cdef int32_t end = bounded_int(position, "position", 0, self.max_length)
        cdef int32_t skipped = bounded_int(pad, "pad", 0, end)
        cdef int level = bounded_int(priority, "priority", 0, self.pool.policy.num_levels - 1)
        cdef list given = token_lists([[] if tokens is None else tokens], "tokens"), holders
        cdef list starts = key_starts(namespace, None if keys is None else [keys], self.block_size, given)
        cdef Int32s known = None if tokens is None else given[0]
        cdef SwappedBlocks *swapped
        cdef int64_t places = (self.num_sides + <int64_t>1) * self.c_blocks_for(end)
        cdef Int64s leaders = handles_of([] if like is None else [like])
        cdef int32_t common = bounded_int(shared, "shared", 0, self.c_blocks_for(end)), leader = -1, row
        if common > 0 and (like is None or tokens is not None):
            raise ValueError(f"shared is {shared}; it needs a sequence `like`, and none whose tokens are known")
        if known is not None and (known.n != end or skipped > 0):
            raise ValueError(f"{known.n} tokens, pad {skipped}, position {end}; known tokens fill it, without a pad")
        if self.c_blocks_for(end) > self.pool.num_blocks:
            raise ValueError(f"position {end} takes {self.c_blocks_for(end)} blocks; there are {self.pool.num_blocks}")
        with cython.critical_section(self.pool):
            self.c_widen(self.c_blocks_for(end) + 1)
            holders = self.c_holders(starts, namespace)
            try:
                self.c_name(leaders, CLOSED)
                if leaders.n > 0:
                    leader = self.named[0]
                    self.c_require_shareable(leader, common, skipped)
            except BaseException:
                holders = None      # they count users, which needs the section
                raise
            if self.num_vacant == 0:
                holders = None
                raise OutOfSequences(
                    f"all {self.max_sequences} rows are in use; release sequences, or make the cache with a larger "
                    "max_sequences"
                )
            swapped = <SwappedBlocks *>malloc(
                sizeof(SwappedBlocks) + places * (sizeof(int64_t) + <size_t>self.block_size * sizeof(int32_t))
            )
            if not swapped:
                holders = None
                raise MemoryError(f"no memory to keep the token ids of {places} blocks")
            swapped.count = 0
            swapped.places = <int64_t *>(swapped + 1)
            swapped.tokens = <int32_t *>(swapped.places + places)
            row = self.c_open_row()
            self.rows[row].swapped = swapped
            self.rows[row].level = <uint8_t>level
            self.rows[row].pad = skipped
            self.rows[row].publishes = known is not None
            if holders is not None:
                self.rows[row].keys = self.keys.c_share((<RowKeysHolder>holders[0]).keys)
            self.c_place(row, end)
            self.c_arrive(row, <const int32_t *>NULL if known is None else known.data, leader, common)
            self.pool.c_note_peak()
            holders = None
            return self.c_handle(row)

    cdef int c_require_shareable(self, int32_t leader, int32_t shared, int32_t pad) except -1:
        if self.rows[leader].pad != pad:
            raise ValueError(f"pad is {pad}; that of the sequence to share with is {self.rows[leader].pad}")
        if shared > self.c_blocks_for(self.rows[leader].position):
            raise ValueError(
                f"shared is {shared}; the sequence to share with has {self.c_blocks_for(self.rows[leader].position)} "
                "blocks"
            )
        return 0

    cdef void c_arrive(self, int32_t row, const int32_t *tokens, int32_t leader, int32_t shared) noexcept nogil:
        """The row's tables as after swap_out: what is published, or a leader's, is shared, the rest is elsewhere."""
        cdef Row *entry = &self.rows[row]
        cdef int32_t *table = self.c_table(row)
        cdef int32_t total = self.c_blocks_for(entry.position), hits = 0, j, side, block
        if tokens != NULL:
            hits = self.index.c_match(tokens, self.c_block_of(entry.position), entry.keys, table, &entry.node)
        entry.num_published = hits
        entry.num_blocks = total
        for side in range(self.num_sides):
            self.sides[side].filled[row] = total
            self.sides[side].first[row] = 0
            if self.sides[side].window > 0:
                self.sides[side].first[row] = self.c_block_of(self.c_lowest_seen(side, entry.position, entry.pad))
        for j in range(total):
            if j < shared:
                table[j] = self.c_table(leader)[j]
            if j < max(hits, shared):
                self.pool.c_incref(table[j])
            else:
                table[j] = ZERO_BLOCK
                self.c_miss(row, j, -1, tokens)
            for side in range(self.num_sides):
                block = ZERO_BLOCK
                if self.c_is_held(side, row, j):
                    if j < hits:
                        block = self.index.c_companion(self.pool.records[table[j]].node, side)
                    elif j < shared and self.c_is_held(side, leader, j):
                        block = self.c_side_table(side, leader)[j]
                    if block == ZERO_BLOCK:
                        self.c_miss(row, j, side, tokens)
                    else:
                        self.pool.c_incref(block)
                self.c_side_table(side, row)[j] = block
        entry.state = SWAPPED
        self.num_swapped += entry.swapped.count
        if self.pool.policy.hears_uses:
            self.c_tell_uses(row, hits)

    cdef void c_miss(self, int32_t row, int32_t j, int32_t side, const int32_t *tokens) noexcept nogil:
        """Entry j in a group is elsewhere; its tokens are kept."""
        cdef SwappedBlocks *swapped = self.rows[row].swapped
        cdef size_t size = self.block_size
        cdef int32_t left = min(self.block_size, self.rows[row].position - j * self.block_size)
        swapped.places[swapped.count] = j * (self.num_sides + <int64_t>1) + side + 1
        memset(swapped.tokens + swapped.count * size, 0, size * sizeof(int32_t))
        if tokens != NULL:
            memcpy(swapped.tokens + swapped.count * size, tokens + j * size, left * sizeof(int32_t))
        swapped.count += 1

    def publish(self, ids):
        """Publish full blocks that are not yet, as of sequences that came in; the next commit would as well.

        Parameters
        ----------
        ids : int64 [n]
            Sequences of no open step, each once.

        Raises
        ------
        InvalidSequence, SwappedOut, StepOpen
            A handle names no live sequence, one that is swapped out, or one in an open step.
        """
        cdef Int64s handles = handles_of(ids)
        cdef Py_ssize_t i
        with cython.critical_section(self.pool):
            self.pool.policy.c_tick()
            for i in range(self.c_name(handles, CLOSED)):
                self.c_publish_rest(self.named[i])
