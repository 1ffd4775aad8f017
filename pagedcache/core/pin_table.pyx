"""What stays in the prefix cache for certain, and what goes first: pin, evict, demote."""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport free, malloc

from pagedcache.core.arguments cimport Int32s, new_int32s, token_lists
from pagedcache.core.block_pool cimport BlockPool
from pagedcache.core.key_table cimport RowKeysHolder
from pagedcache.core.prompt_table cimport PromptTable, key_starts
from pagedcache.core.records cimport BlockRecord, NO_NODE, ZERO_BLOCK

from pagedcache.core.arguments import bounded_int
from pagedcache.keys import Namespace


@cython.no_gc_clear    # __dealloc__ needs the pool
cdef class Pin:
    """References to blocks, until it lets go or is gone."""

    def __cinit__(self, BlockPool pool not None, int64_t room, bytes namespace not None):
        self.pool = pool
        self.namespace = namespace
        self.blocks = <int32_t *>malloc(room * sizeof(int32_t) + 1)
        if not self.blocks:
            raise MemoryError(f"no memory to pin {room} blocks")

    def __dealloc__(self):
        if self.count > 0:      # the collector has taken the pin from its table
            with cython.critical_section(self.pool):
                self.c_let_go()
        free(self.blocks)

    cdef int32_t c_let_go(self) noexcept nogil:
        """Drop the references; how many blocks became usable."""
        cdef int32_t count = self.count
        self.count = 0
        return self.pool.c_drop(self.blocks, count) if count > 0 else 0


@cython.no_gc_clear
cdef class PinTable(PromptTable):
    """The verbs that say what stays and what goes first; see SequenceTable."""

    def __cinit__(
        self, pool, block_size, *, max_sequences=256, max_length=None, steps_in_flight=1, int tag_bits=64, events=None,
        fingerprint=b"", max_pinned=None, side_groups=(), max_step_tokens=None, state_blocks=()
    ):
        cdef int32_t most = self.pool.num_blocks
        self.pins = {}
        self.max_pinned = most // 2 if max_pinned is None else bounded_int(max_pinned, "max_pinned", 0, most)

    def __dealloc__(self):
        if self.num_pinned > 0:     # else __cinit__ may never have run; pins let go while the pool has its index
            with cython.critical_section(self.pool):
                for pin in self.pins.values():
                    (<Pin>pin).c_let_go()

    def pin(self, prompts, name, *, namespace=None, keys=None):
        """Keep what is published of these prompts from eviction, under a name.

        All pins together hold at most ``max_pinned`` blocks, by default half of the pool; a block counts once for
        each prompt that pins it.

        Parameters
        ----------
        prompts, namespace, keys
            As in `admit`. Full blocks only; what is not published is not pinned.
        name : str
            For `unpin`.

        Returns
        -------
        int
            Blocks pinned.

        Raises
        ------
        ValueError
            The name is taken, or the pins would hold too much; nothing was changed.
        """
        cdef Py_ssize_t i
        cdef int32_t last, hits, filled = 0
        cdef int64_t most = 0
        cdef list given, starts, holders
        cdef Int32s tokens
        cdef Pin pin
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__}")
        name = "".join((name,))     # a plain str: hashing another may run anything
        given = token_lists(prompts, "prompts")
        starts = key_starts(namespace, keys, self.block_size, given)
        for tokens in given:
            most += (self.num_sides + 1) * min(tokens.n // self.block_size, <Py_ssize_t>self.pool.num_blocks)
        pin = Pin(self.pool, most, Namespace.of(namespace).name)
        with cython.critical_section(self.pool):
            holders = self.c_holders(starts, namespace)
            for i in range(len(given)):
                tokens = given[i]
                hits = self.index.c_match(
                    tokens.data, <int32_t>min(tokens.n // self.block_size, <Py_ssize_t>self.pool.num_blocks),
                    NULL if holders is None else (<RowKeysHolder>holders[i]).keys, pin.blocks + filled, &last
                )
                filled += hits + self.c_list_companions(pin.blocks + filled, hits)
            holders = None      # they count users, which needs the section
            if name in self.pins:       # asked last: what is made before may run a finalizer that pins
                raise ValueError(f"the name {name!r} is taken: unpin it first, or choose another")
            if filled > self.max_pinned - self.num_pinned:
                raise ValueError(
                    f"{filled} blocks to pin, {self.num_pinned} are pinned already and max_pinned is "
                    f"{self.max_pinned}: unpin something first, or make the cache with a larger one"
                )
            self.pins[name] = pin
            for i in range(filled):
                self.pool.c_incref(pin.blocks[i])
            pin.count = filled
            self.num_pinned += filled
            self.pool.c_note_peak()
        return filled

    cdef int32_t c_list_companions(self, int32_t *blocks, int32_t hits) noexcept nogil:
        """Behind the `hits` blocks of group 0, those of side groups that a hit of all that they can serve needs.

        Or a hit of one block less, as of the prompt itself: it leaves a token to compute.
        """
        cdef int32_t served = self.c_common_hits(blocks, hits), side, j, block, listed = 0
        for side in range(self.num_sides):
            for j in range(served):
                block = self.index.c_companion(self.pool.records[blocks[j]].node, side)
                if block != ZERO_BLOCK and self.c_is_wanted(side, max(served - 1, 0), j):
                    blocks[hits + listed] = block
                    listed += 1
        return listed

    def unpin(self, name):
        """Undo `pin`.

        Returns
        -------
        int
            Blocks that became usable.

        Raises
        ------
        KeyError
            Nothing is pinned under this name.
        """
        name = "".join((name,))
        with cython.critical_section(self.pool):
            if name not in self.pins:
                raise KeyError(f"nothing is pinned as {name!r}; pinned are {sorted(self.pins)}")
            return self.c_unpin(name)

    cdef int32_t c_unpin(self, str name) except -1:
        """Let a pin go, if it is there; how many blocks became usable."""
        cdef Pin pin = self.pins.pop(name, None)
        if pin is None:
            return 0
        self.num_pinned -= pin.count
        return pin.c_let_go()

    def evict(self, n_blocks):
        """Give up idle cached blocks, in the order in which they would go for new content.

        Parameters
        ----------
        n_blocks : int
            At most so many.

        Returns
        -------
        int
            Blocks evicted.

        Notes
        -----
        Only blocks that nobody holds go: no sequence, pin, caller or open step, and no unfinished work. Of a prefix
        the tail goes first, so that what stays can be found. The blocks were usable before; evicting makes them
        vacant, which neighbours need to form runs of ids again.
        """
        cdef int64_t wanted = bounded_int(n_blocks, "n_blocks", 0, INT32_MAX)
        with cython.critical_section(self.pool):
            wanted = min(wanted, <int64_t>self.pool.policy.num_idle)
            self.pool.c_make_vacant(self.pool.num_vacant + <int32_t>wanted)
            return wanted

    def demote(self, prompts, *, namespace=None, keys=None):
        """Let what only these prompts use go before anything else, when memory is wanted: their sessions have ended.

        Parameters
        ----------
        prompts, namespace, keys
            As in `admit`; each with all that was said, since what something else in the cache continues stays as it
            was.

        Returns
        -------
        int
            Blocks demoted; none that somebody holds. A hit makes them blocks like any other again.
        """
        cdef Py_ssize_t i, demoted = 0
        cdef int32_t last, count, first, k
        cdef int32_t *blocks
        cdef BlockRecord *records = self.pool.records
        cdef Int32s tokens
        cdef list given = token_lists(prompts, "prompts"), holders
        cdef list starts = key_starts(namespace, keys, self.block_size, given)
        scratch = new_int32s(self.pool.num_blocks, &blocks)
        with cython.critical_section(self.pool):
            holders = self.c_holders(starts, namespace)
            for i in range(len(given)):
                tokens = given[i]
                count = self.index.c_match(
                    tokens.data, <int32_t>min(tokens.n // self.block_size, <Py_ssize_t>self.pool.num_blocks),
                    NULL if holders is None else (<RowKeysHolder>holders[i]).keys, blocks, &last
                )
                first = count       # up to where the prompt's own end begins
                while (first > 0 and records[blocks[first - 1]].refcount == 0
                        and self.c_continues(blocks[first - 1], blocks[first] if first < count else ZERO_BLOCK)):
                    first -= 1
                for k in range(first, count):
                    self.c_demote(blocks[k])
                demoted += count - first
            holders = None      # they count users, which needs the section
        del scratch
        return demoted

    cdef bint c_continues(self, int32_t block, int32_t child) noexcept nogil:
        """Whether the child alone continues a published block; child ZERO_BLOCK: whether nothing does."""
        cdef int32_t first = self.index.nodes[self.pool.records[block].node].child
        if child == ZERO_BLOCK:
            return first == NO_NODE
        return first == self.pool.records[child].node and self.index.nodes[first].next == NO_NODE

    cdef void c_demote(self, int32_t block) noexcept nogil:
        """Put an idle block first, and those that side groups have beside it."""
        cdef int32_t side, companion
        self.pool.policy.c_demote(block)
        for side in range(self.num_sides):
            companion = self.index.c_companion(self.pool.records[block].node, side)
            if companion != ZERO_BLOCK and self.pool.records[companion].refcount == 0:
                self.pool.policy.c_demote(companion)

    cdef int c_forget_pins(self, namespace, bint all_of_them) except -1:
        cdef list names = [name for name, pin in self.pins.items() if all_of_them or pin.namespace == namespace]
        for name in names:
            self.c_unpin(name)      # a finalizer may have done it meanwhile
        return 0

    cdef dict c_references(self):
        """Also the pinned blocks."""
        cdef dict references = PromptTable.c_references(self)
        cdef int32_t k
        cdef Pin pin
        for pin in self.pins.values():
            for k in range(pin.count):
                references[pin.blocks[k]] = references.get(pin.blocks[k], 0) + 1
        return references
