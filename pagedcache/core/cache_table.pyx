"""The prefix cache as a whole: forgetting it (reset, invalidate), and telling what is in it (events)."""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, uint8_t
from libc.stdlib cimport calloc, free, malloc

from pagedcache.core.event_log cimport EventLog
from pagedcache.core.key_table cimport key_at
from pagedcache.core.pin_table cimport PinTable
from pagedcache.core.records cimport NO_NODE
from pagedcache.core.row_table cimport VACANT

import numpy as np

from pagedcache.core._events import EventNamer
from pagedcache.keys import Namespace

cdef enum:
    MORE_EVENTS = 4096      # beyond one for each block: what a busy engine does between two drains


@cython.no_gc_clear
cdef class CacheTable(PinTable):
    """The verbs that control the prefix cache; see SequenceTable."""

    def __cinit__(
        self, pool, block_size, *, max_sequences=256, max_length=None, steps_in_flight=1, int tag_bits=64, events=None,
        fingerprint=b"", max_pinned=None, side_groups=(), max_step_tokens=None, state_blocks=()
    ):
        if events not in (None, "digests", "tokens"):
            raise ValueError(f"events is {events!r}; it is None, 'digests' or 'tokens' (digests and token ids)")
        if events is not None:
            self.tell_tokens = events == "tokens"
            self.namer = EventNamer(self.block_size, fingerprint)
            self.index.log = EventLog(
                self.keys, min(self.pool.num_blocks, INT32_MAX - MORE_EVENTS) + MORE_EVENTS, self.block_size
            )

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

    cdef int32_t c_forget(self, const uint8_t *doomed) noexcept nogil:
        """Take nodes out of the index, all of them or the doomed ones with all that continues them; how many."""
        cdef int32_t block, node, forgotten = 0
        for block in range(1, self.pool.num_blocks + 1):
            node = self.pool.records[block].node
            # From a leaf upwards, as long as nothing continues the node: each goes when its last child has gone.
            while (node != NO_NODE and self.index.nodes[node].child == NO_NODE
                    and (doomed == NULL or doomed[node])):
                self.pool.c_forget_companions(node)
                self.pool.c_forget(self.index.blocks[node])
                node = self.c_remove_leaf(node)
                forgotten += 1
        return forgotten

    cdef inline int32_t c_remove_leaf(self, int32_t node) noexcept nogil:
        """Remove a childless node; its parent."""
        cdef int32_t parent = self.index.nodes[node].parent
        self.index.c_remove(node)
        return parent

    @property
    def has_events(self):
        """Whether `events` would tell anything now."""
        return self.index.log is not None and (self.index.log.count > 0 or self.index.log.overrun)

    def events(self, *, anew=False):
        """What was stored in and removed from the prefix cache since the last call, oldest first.

        Parameters
        ----------
        anew : bool
            Forget what was recorded, and tell one CLEARED and all that is published, as if stored anew.

        Returns
        -------
        structured array [n]
            ``kind`` (`EventKind`), ``block``, ``digest`` and ``parent`` (32 bytes each, as in
            `pagedcache.digests`; zeros where there is none), ``namespace`` (its name), ``adapter`` (the name of the
            one that begins with the first token, or b""), ``keyed`` (whether other keys tell the block, or one
            before it, apart) and, if asked for, ``tokens`` int32 [block_size]. After more events than there is room
            for comes what `anew` asks for.

        Raises
        ------
        ValueError
            The cache was made without ``events=``.
        """
        if self.index.log is None:
            raise ValueError("the cache records no events: make it with events='digests' or events='tokens'")
        cdef bint tells_all = anew
        with cython.critical_section(self.pool):
            if tells_all:
                self.index.log.overrun = True
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
