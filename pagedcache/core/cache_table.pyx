"""Control of the prefix cache: what stays (pin), what goes (evict, demote, reset, invalidate), who is told (events)."""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc

from pagedcache.core.arguments cimport Int32s, new_int32s, token_lists
from pagedcache.core.block_pool cimport BlockPool
from pagedcache.core.event_log cimport EventLog
from pagedcache.core.key_table cimport RowKeysHolder, key_at
from pagedcache.core.prompt_table cimport PromptTable, key_starts
from pagedcache.core.records cimport BlockRecord, NO_NODE
from pagedcache.core.row_table cimport VACANT

import numpy as np

from pagedcache.core._events import EventNamer
from pagedcache.core.arguments import bounded_int
from pagedcache.keys import Namespace

cdef enum:
    MORE_EVENTS = 4096      # beyond one for each block: what a busy engine does between two drains


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
cdef class CacheTable(PromptTable):
    """The verbs that control the prefix cache; see SequenceTable."""

    def __cinit__(
        self, pool, block_size, *, max_sequences=256, max_length=None, steps_in_flight=1, int tag_bits=64, events=None,
        fingerprint=b"", max_pinned=None
    ):
        cdef int32_t most = self.pool.num_blocks
        self.pins = {}
        self.max_pinned = most // 2 if max_pinned is None else bounded_int(max_pinned, "max_pinned", 0, most)
        if events not in (None, "digests", "tokens"):
            raise ValueError(f"events is {events!r}; it is None, 'digests' or 'tokens' (digests and token ids)")
        if events is not None:
            self.tell_tokens = events == "tokens"
            self.namer = EventNamer(self.block_size, fingerprint)
            self.index.log = EventLog(
                self.keys, min(self.pool.num_blocks, INT32_MAX - MORE_EVENTS) + MORE_EVENTS, self.block_size
            )

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
        cdef int32_t last, filled = 0
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
            most += min(tokens.n // self.block_size, <Py_ssize_t>self.pool.num_blocks)
        pin = Pin(self.pool, most, Namespace.of(namespace).name)
        with cython.critical_section(self.pool):
            holders = self.c_holders(starts, namespace)
            for i in range(len(given)):
                tokens = given[i]
                filled += self.index.c_match(
                    tokens.data, <int32_t>min(tokens.n // self.block_size, <Py_ssize_t>self.pool.num_blocks),
                    NULL if holders is None else (<RowKeysHolder>holders[i]).keys, pin.blocks + filled, &last
                )
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
                        and self.index.nodes[records[blocks[first - 1]].node].children == (first < count)):
                    first -= 1
                for k in range(first, count):
                    self.pool.policy.c_demote(blocks[k])
                demoted += count - first
            holders = None      # they count users, which needs the section
        del scratch
        return demoted

    def reset(self):
        """Forget the whole prefix cache, pins included; for instance when the weights have changed.

        Live sequences keep their blocks but publish no more: what they hold may be of the old kind.

        Returns
        -------
        int
            Blocks that can no longer be found.
        """
        cdef int32_t row
        with cython.critical_section(self.pool):
            self.c_forget_pins(None, all_of_them=True)
            for row in range(self.max_sequences):
                self.c_silence(row)
            return self.c_forget(NULL)

    def invalidate(self, *, namespace):
        """Forget what a namespace has published, its pins included; its live sequences publish no more.

        Parameters
        ----------
        namespace : Namespace, bytes, str or None
            None: everything that is in no namespace.

        Returns
        -------
        int
            Blocks that can no longer be found.
        """
        cdef int32_t block, node, row, first
        border = Namespace.of(namespace).name
        cdef uint8_t[::1] doomed = np.zeros(self.pool.num_blocks, np.uint8)     # by node
        cdef int32_t[::1] root = np.full(self.pool.num_blocks, NO_NODE, np.int32)
        cdef const uint8_t *nodes = &doomed[0]
        with cython.critical_section(self.pool):
            self.c_forget_pins(border, all_of_them=False)
            for row in range(self.max_sequences):
                first = 0
                if self.rows[row].state == VACANT:
                    continue
                if border == self.c_namespace(key_at(self.rows[row].keys, &first, 0)):
                    self.c_silence(row)
            for block in range(1, self.pool.num_blocks + 1):
                node = self.pool.records[block].node
                if node == NO_NODE:
                    continue
                while self.index.nodes[node].parent != NO_NODE and root[node] == NO_NODE:
                    node = self.index.nodes[node].parent
                self.c_mark_path(self.pool.records[block].node, node if root[node] == NO_NODE else root[node], root)
            for block in range(1, self.pool.num_blocks + 1):
                node = self.pool.records[block].node
                if node != NO_NODE:
                    doomed[node] = border == self.c_namespace(self.index.c_key(root[node]))
            return self.c_forget(nodes)

    cdef int c_mark_path(self, int32_t node, int32_t first, int32_t[::1] root) except -1:
        """All nodes from `node` up have `first` as their root."""
        while node != NO_NODE and root[node] == NO_NODE:
            root[node] = first
            node = self.index.nodes[node].parent
        return 0

    cdef object c_namespace(self, int32_t key):
        """Name of the namespace that a first block's key is in; the default one's where there is no key."""
        return b"" if key == 0 else self.keys.entries[key][1]

    cdef int c_silence(self, int32_t row) except -1:
        """The row publishes no more, and names no node."""
        self.rows[row].publishes = False
        self.rows[row].node = NO_NODE
        self.rows[row].num_published = 0
        return 0

    cdef int c_forget_pins(self, namespace, bint all_of_them) except -1:
        cdef list names = [name for name, pin in self.pins.items() if all_of_them or pin.namespace == namespace]
        for name in names:
            self.c_unpin(name)      # a finalizer may have done it meanwhile
        return 0

    cdef int32_t c_forget(self, const uint8_t *doomed) noexcept nogil:
        """Take nodes out of the index, all of them or the doomed ones with all that continues them; how many."""
        cdef int32_t block, node, forgotten = 0
        for block in range(1, self.pool.num_blocks + 1):
            node = self.pool.records[block].node
            # From a leaf upwards, as long as nothing continues the node: each goes when its last child has gone.
            while (node != NO_NODE and self.index.nodes[node].children == 0
                    and (doomed == NULL or doomed[node])):
                self.pool.c_forget(self.index.blocks[node])
                node = self.c_remove_leaf(node)
                forgotten += 1
        return forgotten

    cdef inline int32_t c_remove_leaf(self, int32_t node) noexcept nogil:
        """Remove a childless node; its parent."""
        cdef int32_t parent = self.index.nodes[node].parent
        self.index.c_remove(node)
        return parent

    def events(self):
        """What was stored in and removed from the prefix cache since the last call, oldest first.

        Returns
        -------
        structured array [n]
            ``kind`` (`EventKind`), ``block``, ``digest`` and ``parent`` (32 bytes each, as in
            `pagedcache.digests`; zeros where there is none) and, if asked for, ``tokens`` int32 [block_size]. After
            more events than there is room for comes one CLEARED, then all that is published as if stored anew.

        Raises
        ------
        ValueError
            The cache was made without ``events=``.
        """
        if self.index.log is None:
            raise ValueError("the cache records no events: make it with events='digests' or events='tokens'")
        with cython.critical_section(self.pool):
            if self.is_naming:      # by another thread, or further up this one: they are told in order, once
                return self.namer.named([], self.tell_tokens, cleared=False)
            self.is_naming = True
            try:
                cleared = self.index.log.overrun
                if cleared:
                    self.c_log_published()
                return self.namer.named(self.index.log.c_drain(), self.tell_tokens, cleared=cleared)
            except BaseException:
                self.index.log.overrun = True       # what was drained is lost
                raise
            finally:
                self.is_naming = False

    cdef int c_log_published(self) except -1:
        """Log the whole index as if it were stored now, parents first."""
        cdef int32_t block, node, depth
        cdef int32_t *path = <int32_t *>malloc(self.pool.num_blocks * sizeof(int32_t))
        cdef uint8_t *is_logged = <uint8_t *>calloc(self.pool.num_blocks, 1)
        if not path or not is_logged:
            free(path)
            free(is_logged)
            raise MemoryError(f"no memory to tell of {self.index.num_nodes} published blocks")
        self.index.log.c_clear()
        for block in range(1, self.pool.num_blocks + 1):
            node = self.pool.records[block].node
            depth = 0
            while node != NO_NODE and not is_logged[node]:
                is_logged[node] = True
                path[depth] = node
                depth += 1
                node = self.index.nodes[node].parent
            for depth in range(depth - 1, -1, -1):
                node = path[depth]
                self.index.log.c_stored(
                    node, self.index.nodes[node].parent, self.index.blocks[node], self.index.c_key(node),
                    self.index.tokens + <size_t>self.index.blocks[node] * self.block_size
                )
        free(path)
        free(is_logged)
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
