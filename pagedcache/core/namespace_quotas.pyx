"""LRU in which a namespace with more idle blocks than its quota gives way before others do.

    ring of LRU     all idle blocks, oldest first
    idle            the same blocks, a queue for each namespace with a quota, and one for all others
    over            namespaces beyond their quota, who has been it for longest first

While memory is there nothing is taken, so that a quota only says who gives way. A block has the namespace of what it
continues. Those of a namespace stand in its queue as they do in the ring, so that what continues a block goes before it
here as there. All events are O(1); the name of a namespace is looked up for the first block of a prompt.
"""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

from pagedcache.core.eviction cimport LRU
from pagedcache.core.queues cimport IN_NONE, Queues
from pagedcache.core.records cimport BlockRecord, NO_NODE, ZERO_BLOCK

from pagedcache.core._checks import require
from pagedcache.core.arguments import bounded_int
from pagedcache.keys import Namespace

cdef enum:
    MOST_QUOTAS = 254


@cython.no_gc_clear    # the pool that is collected with it still asks it
cdef class NamespaceQuotas(LRU):
    """Least recently used first, but those of namespaces that keep too much before all others.

    Parameters
    ----------
    quotas : mapping of namespace to int
        Idle cached blocks that a namespace may keep while others want memory: a Namespace, bytes, str, or None for
        what is in no namespace. At most 254; a namespace without a quota may keep any number.

    Raises
    ------
    ValueError
        A quota is negative, a namespace is named twice, or there are too many.

    Examples
    --------
    >>> from pagedcache.core import BlockPool
    >>> pool = BlockPool(1000, policy=NamespaceQuotas({"trial": 100, "tenant-7": 400}))
    """

    def __cinit__(self, quotas):
        cdef int slot
        if not hasattr(quotas, "items"):
            raise TypeError(f"quotas must map namespaces to numbers of blocks, not be a {type(quotas).__name__}")
        if len(quotas) > MOST_QUOTAS:
            raise ValueError(f"quotas has {len(quotas)} entries; it must have at most {MOST_QUOTAS}")
        self.hears_uses = True
        self.slots = {}
        for slot, (namespace, blocks) in enumerate(quotas.items(), 1):
            name = Namespace.of(namespace).name
            if name in self.slots:
                raise ValueError(f"namespace {name!r} has two quotas")
            self.quota[slot] = bounded_int(blocks, f"the quota of {name!r}", 0, INT32_MAX)
            self.slots[name] = slot

    def __dealloc__(self):
        free(self.slot)

    cdef int c_bind(self, BlockRecord *records, int32_t num_blocks) except -1:
        LRU.c_bind(self, records, num_blocks)
        self.idle = Queues(num_blocks, 1 + <int>len(self.slots))
        self.over = Queues(<int32_t>len(self.slots), 1)
        self.slot = <uint8_t *>calloc(<size_t>num_blocks + 1, sizeof(uint8_t))
        if not self.slot:
            raise MemoryError(f"no memory for the namespaces of {num_blocks} blocks")
        self.nbytes = self.idle.nbytes + self.over.nbytes + <int64_t>num_blocks + 1
        return 0

    cdef void c_publish(self, int32_t block, int level) noexcept nogil:
        cdef int32_t node = self.records[block].node
        cdef int32_t parent = self.index.nodes[node].parent
        self.slot[block] = <uint8_t>self.c_slot_of(node) if parent == NO_NODE else self.slot[self.index.blocks[parent]]

    cdef int c_slot_of(self, int32_t node) noexcept nogil:
        """Slot of the namespace of a first block."""
        cdef int32_t key = self.index.c_key(node)
        with gil:
            name = b"" if key == 0 else self.index.keys.entries[key][1]
            return self.slots.get(name, 0)

    cdef void c_move(self, int32_t block, int32_t to) noexcept nogil:
        self.slot[to] = self.slot[block]

    cdef void c_insert(self, int32_t block) noexcept nogil:
        cdef int slot = self.slot[block]
        LRU.c_insert(self, block)
        self.idle.c_append(slot, block)
        if slot > 0 and self.idle.count[slot] == self.quota[slot] + 1:
            self.over.c_append(0, slot)

    cdef void c_remove(self, int32_t block) noexcept nogil:
        cdef int slot = self.slot[block]
        LRU.c_remove(self, block)
        self.idle.c_remove(block)
        if slot > 0 and self.idle.count[slot] == self.quota[slot]:
            self.over.c_remove(slot)

    cdef int32_t c_pop(self) noexcept nogil:
        cdef int32_t block = self.records[ZERO_BLOCK].next
        if self.over.count[0] > 0:
            block = self.idle.c_oldest(self.over.c_oldest(0))
        self.c_remove(block)
        return block

    cdef void c_demote(self, int32_t block) noexcept nogil:
        """First of its namespace too; what is beyond its quota still goes before it."""
        cdef bint is_over = self.over.queue[self.slot[block]] != IN_NONE
        LRU.c_demote(self, block)       # removes it, and puts it into the ring
        self.idle.c_put_first(self.slot[block], block)
        if is_over and self.over.queue[self.slot[block]] == IN_NONE:
            self.over.c_append(0, self.slot[block])

    cdef list c_order(self):
        cdef list order = []
        cdef set gone
        cdef int slot
        for slot in self.over.c_list(0):
            order += self.idle.c_list(slot)[:self.idle.count[slot] - <Py_ssize_t>self.quota[slot]]
        gone = set(order)
        return order + [block for block in LRU.c_order(self) if block not in gone]

    cdef int c_check(self) except -1:
        cdef int slot
        self.idle.c_check()
        self.over.c_check()
        for slot in range(1, self.idle.num_queues):
            is_over = self.over.queue[slot] != IN_NONE
            require(is_over == (self.idle.count[slot] > self.quota[slot]), f"quota {slot} is watched wrongly")
        return 0
